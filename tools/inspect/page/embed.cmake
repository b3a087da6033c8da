# Writes the files of this folder into a C++ file: cmake -DOUT=page.cpp -P embed.cmake
set(scripts data maps graph panel paths attention tables main)

function(literal name text)  # the text as a raw string
  set(${name} "R\"page(${text})page\"" PARENT_SCOPE)
endfunction()

file(READ ${CMAKE_CURRENT_LIST_DIR}/page.html html)
string(FIND "${html}" "<!-- styles -->\n" styles)
string(SUBSTRING "${html}" 0 ${styles} head)
string(SUBSTRING "${html}" ${styles} -1 body)
string(REPLACE "<!-- styles -->\n" "" body "${body}")
file(READ ${CMAKE_CURRENT_LIST_DIR}/page.css style)
foreach(part head style body)
  literal(${part} "${${part}}")
endforeach()

set(script)
foreach(name ${scripts})
  file(READ ${CMAKE_CURRENT_LIST_DIR}/${name}.js text)
  literal(text "${text}")
  string(APPEND script "    ${text},\n")
endforeach()

file(WRITE ${OUT} "// Made by tools/inspect/page/embed.cmake.
#include <tapehead/inspect/page/page.h>

namespace tapehead::page {

const std::string_view head = ${head};
const std::string_view style = ${style};
const std::string_view body = ${body};
constexpr std::string_view parts[] = {
${script}};
const std::span<const std::string_view> script = parts;

}  // namespace tapehead::page
")
