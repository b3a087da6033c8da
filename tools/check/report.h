#pragma once
// A report as text for people, and as one JSON document of schema 1 (docs/dump-format.md).

#include <string>
#include <string_view>

#include <tools/check/check.h>

namespace tapehead::check {

std::string_view name_of(Verdict verdict);

// 0 when the dump agrees with the formula, else 1.
int exit_code(const Report& report);

// Several lines, the last one ended.
std::string report_text(const Report& report);

// One line without its end. A number that is not finite is null, which JSON has for it.
std::string report_json(const Report& report);

// The same for a dump that cannot be used; `why` is its "next".
std::string unusable_json(const std::string& file, const std::string& why);

}  // namespace tapehead::check
