# What every target of the project is compiled with.

# One layer of the house: a static library that may use what is named after USES and nothing else.
function(tapehead_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;USES;PRIVATELY_USES")
  add_library(tapehead_${name} STATIC ${arg_SOURCES})
  add_library(tapehead::${name} ALIAS tapehead_${name})
  set_target_properties(tapehead_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  target_compile_features(tapehead_${name} PUBLIC cxx_std_20)
  target_include_directories(tapehead_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(tapehead_${name} PUBLIC ${arg_USES} PRIVATE ${arg_PRIVATELY_USES})
  tapehead_compile_options(tapehead_${name})
endfunction()

function(tapehead_compile_options target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
    -ffp-contract=off  # the same numbers on every machine: the compiler invents no fused multiply-add
    $<$<BOOL:${TAPEHEAD_WERROR}>:-Werror>)
  # The layout checks of the array library see the assertion builds only; they change no type.
  target_compile_definitions(${target} PRIVATE $<$<CONFIG:Debug>:XTENSOR_ENABLE_ASSERT>)
endfunction()

# xtensor's headers are used inside .cpp files only, so an installed tapehead does not ask for them.
set(TAPEHEAD_XTENSOR $<BUILD_INTERFACE:xtensor> $<BUILD_INTERFACE:xtensor-blas>)
