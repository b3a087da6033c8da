#include <tapehead/inspect/trace.h>

#include <algorithm>
#include <ostream>

#include <nlohmann/json.hpp>

#include <tapehead/core/errors.h>

namespace tapehead {
namespace {

using Json = nlohmann::ordered_json;

constexpr int process = 1, forward = 1, backward = 2;

Json thread_name(int thread, const char* name) {
  return {
      {"name", "thread_name"}, {"ph", "M"}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}};
}

// An event from `start` on, and the memory at its end. Times are in microseconds.
void add_event(std::vector<Json>& events, const TapeRow& row, int thread, double start, double seconds,
               const std::optional<Index>& live) {
  const bool is_forward = thread == forward;
  Json arguments = {{"node", row.index}, {"shape", to_string(row.shape)}, {"bytes", row.bytes}};
  if (!row.label.empty()) arguments["label"] = row.label;
  if (is_forward) arguments["flops"] = row.flops;
  if (!row.remark.empty()) arguments["kernel"] = row.remark;
  events.push_back({{"name", row.op},
                    {"cat", is_forward ? "forward" : "backward"},
                    {"ph", "X"},
                    {"ts", start * 1e6},
                    {"dur", seconds * 1e6},
                    {"pid", process},
                    {"tid", thread},
                    {"args", std::move(arguments)}});
  if (!live) return;
  events.push_back({{"name", "memory"},
                    {"ph", "C"},
                    {"ts", (start + seconds) * 1e6},
                    {"pid", process},
                    {"args", {{"live bytes", *live}}}});
}

}  // namespace

void write_trace(std::ostream& out, const TapeTable& table) {
  const bool timed = std::ranges::any_of(table.rows, [](const TapeRow& row) {
    return row.forward_seconds.has_value() || row.backward_seconds.has_value();
  });
  if (!timed) throw LogicError("write_trace", "the tape kept no times; they begin at the level statistics");
  std::vector<Json> events = {thread_name(forward, "forward"), thread_name(backward, "backward")};
  for (const TapeRow& row : table.rows) {
    if (row.forward_start && row.forward_seconds) {
      add_event(events, row, forward, *row.forward_start, *row.forward_seconds, row.live_bytes_forward);
    }
    if (row.backward_start && row.backward_seconds) {
      add_event(events, row, backward, *row.backward_start, *row.backward_seconds, row.live_bytes_backward);
    }
  }
  std::ranges::stable_sort(events, {}, [](const Json& event) { return event.value("ts", -1.0); });
  const Json document = {
      {"displayTimeUnit", "ns"}, {"otherData", {{"title", table.title}}}, {"traceEvents", events}};
  out << document.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
}

}  // namespace tapehead
