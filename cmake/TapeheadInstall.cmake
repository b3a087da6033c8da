# The installed package: find_package(tapehead) gives tapehead::tapehead, and with COMPONENTS inspect also
# tapehead::inspect.
include(CMakePackageConfigHelpers)

add_library(tapehead INTERFACE)
add_library(tapehead::tapehead ALIAS tapehead)
target_link_libraries(tapehead INTERFACE tapehead_nn)

install(TARGETS tapehead tapehead_core tapehead_ops tapehead_nn EXPORT tapeheadTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(folder core ops nn)
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapehead/${folder}
          FILES_MATCHING PATTERN "*.h" PATTERN "kernels" EXCLUDE)
endforeach()
install(FILES tapehead.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapehead)
install(FILES tools/contract/tapehead_kernel.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapehead)
if(TARGET tapehead_command)
  install(TARGETS tapehead_inspect EXPORT tapeheadInspectTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY tools/inspect/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapehead/inspect
          FILES_MATCHING PATTERN "*.h" PATTERN "page" EXCLUDE PATTERN "command.h" EXCLUDE PATTERN "subject.h" EXCLUDE
          PATTERN "settings.h" EXCLUDE)
  install(TARGETS tapehead_command DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tapehead)
install(EXPORT tapeheadTargets NAMESPACE tapehead:: DESTINATION ${package_dir})
if(TARGET tapehead_command)
  install(EXPORT tapeheadInspectTargets NAMESPACE tapehead:: DESTINATION ${package_dir})
endif()
configure_package_config_file(cmake/tapeheadConfig.cmake.in ${PROJECT_BINARY_DIR}/tapeheadConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tapeheadConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tapeheadConfig.cmake ${PROJECT_BINARY_DIR}/tapeheadConfigVersion.cmake
        DESTINATION ${package_dir})
