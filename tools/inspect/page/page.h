#pragma once
// The files of this folder as text; embed.cmake writes the definitions when the program is built.

#include <span>
#include <string_view>

namespace tapehead::page {

extern const std::string_view head, style, body;  // page.html up to its styles, page.css, the rest of it
extern const std::span<const std::string_view> script;  // the .js files, in the order in which they run

}  // namespace tapehead::page
