#pragma once
// A tape's times and memory as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing
// open.

#include <iosfwd>

#include <tapehead/inspect/table.h>

namespace tapehead {

// Forward and backward as complete events, a line each, and the live bytes as a counter. Format: "Trace event
// format", the document of Chromium's catapult project. Throws LogicError when no times were kept.
void write_trace(std::ostream& out, const TapeTable& table);

}  // namespace tapehead
