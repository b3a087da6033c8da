#pragma once
// A tape as JSON, and back. The schema is in docs/inspect-schema.md.

#include <iosfwd>
#include <string>

#include <tapehead/inspect/table.h>

namespace tapehead {

inline constexpr const char* inspect_schema = "tapehead-inspect";
inline constexpr int inspect_schema_version = 1;

// One JSON document on one line. A number that is not finite is the text "nan", "inf" or "-inf".
void write_json(std::ostream& out, const TapeTable& table);

// What write_json() wrote to a file: all but the steps. Throws FileError for a file that cannot be read, is
// no JSON, or is not of this schema and version, saying where.
TapeTable read_json(const std::string& path);

}  // namespace tapehead
