#include <tapehead/inspect/json.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tapehead/nn/file_error.h>

namespace tapehead {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(double number) {
  if (std::isfinite(number)) return number;
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}
Json json_of(Index number) { return number; }

Json json_of(const Shape& shape) { return std::vector<Index>(shape.begin(), shape.end()); }

Json json_of(const ArraySummary& s) {
  return {{"least", json_of(s.least)},   {"largest", json_of(s.largest)}, {"mean", json_of(s.mean)},
          {"spread", json_of(s.spread)}, {"norm", json_of(s.norm)},       {"nans", s.nans},
          {"infinities", s.infinities}};
}

Json json_of(const ArrayNumbers& array) {
  Json numbers = Json::array();
  for (const double number : array.numbers) numbers.push_back(json_of(number));
  return {{"shape", json_of(array.shape)}, {"numbers", std::move(numbers)}};
}

template <class Value>
void add(Json& json, const char* name, const std::optional<Value>& value) {
  if (value) json[name] = json_of(*value);
}

Json json_of(const TapeArgument& argument);
Json json_of(const TapeRow& row);
Json json_of(const TapeTotal& total);
Json json_of(const AttentionTable& attention);
Json json_of(const PathRow& row);
Json json_of(const PathTable& table);
Json json_of(const StepRow::Contribution& contribution);
Json json_of(const StepRow& step);

template <class Rows>
Json list_of(const Rows& rows) {
  Json list = Json::array();
  for (const auto& row : rows) list.push_back(json_of(row));
  return list;
}

Json json_of(const TapeArgument& argument) { return argument.node ? Json(*argument.node) : Json(nullptr); }

Json json_of(const TapeRow& row) {
  Json json = {{"index", row.index},
               {"op", row.op},
               {"label", row.label},
               {"scope", row.scope},
               {"inputs", list_of(row.arguments)},
               {"shape", json_of(row.shape)},
               {"type", row.type},
               {"bytes", row.bytes},
               {"kept_bytes", row.kept_bytes},
               {"flops", row.flops}};
  if (row.port) json["port"] = true;
  if (row.input) json["input"] = true;
  if (row.flops_assumed) json["flops_assumed"] = true;
  if (!row.remark.empty()) json["kernel"] = row.remark;
  add(json, "forward_start", row.forward_start);
  add(json, "forward_seconds", row.forward_seconds);
  add(json, "backward_start", row.backward_start);
  add(json, "backward_seconds", row.backward_seconds);
  add(json, "live_bytes_forward", row.live_bytes_forward);
  add(json, "live_bytes_backward", row.live_bytes_backward);
  add(json, "value", row.value);
  add(json, "gradient", row.gradient);
  add(json, "value_numbers", row.value_numbers);
  add(json, "gradient_numbers", row.gradient_numbers);
  return json;
}

Json json_of(const TapeTotal& total) {
  return {{"name", total.name},
          {"nodes", total.nodes},
          {"bytes", total.bytes},
          {"kept_bytes", total.kept_bytes},
          {"flops", total.flops},
          {"forward_seconds", total.forward_seconds},
          {"backward_seconds", total.backward_seconds}};
}

Json json_of(const AttentionTable& attention) {
  Json json = {{"label", attention.label}, {"node", attention.node}, {"weights", json_of(attention.weights)}};
  add(json, "scores", attention.scores);
  add(json, "weight_gradient", attention.weight_gradient);
  if (!attention.query_tokens.empty()) json["query_tokens"] = attention.query_tokens;
  if (!attention.key_tokens.empty()) json["key_tokens"] = attention.key_tokens;
  return json;
}

Json json_of(const PathRow& row) {
  Json json = {{"name", row.name},
               {"label", row.label},
               {"node", row.node},
               {"norm", json_of(row.norm)},
               {"share", json_of(row.share)},
               {"cosine", json_of(row.cosine)},
               {"largest", json_of(row.largest)},
               {"largest_at", row.largest_at}};
  add(json, "gradient", row.gradient);
  return json;
}

Json json_of(const PathTable& table) {
  Json json = {{"node", table.node}, {"name", table.name}};
  add(json, "head", table.head);
  add(json, "query_row", table.query_row);
  json["rows"] = list_of(table.rows);
  json["total"] = json_of(table.total);
  add(json, "gradient", table.total_numbers);
  json["sum_error"] = json_of(table.sum_error);
  json["share_of_gradient"] = json_of(table.share_of_gradient);
  return json;
}

Json json_of(const StepRow::Contribution& contribution) {
  return {{"to", contribution.to}, {"argument", contribution.argument}, {"number", contribution.number},
          {"of", contribution.of}, {"dx", json_of(contribution.dx)},    {"sum", json_of(contribution.sum)}};
}

Json json_of(const StepRow& step) {
  return {{"node", step.node},
          {"op", step.op},
          {"label", step.label},
          {"gradient", json_of(step.gradient)},
          {"contributions", list_of(step.contributions)}};
}

// Reading: each takes what json_of() made. Json throws when a field is missing or of another kind.

void read(const Json& json, double& number) {
  if (json.is_number()) {
    number = json.get<double>();
    return;
  }
  const auto text = json.get<std::string>();
  if (text != "nan" && text != "inf" && text != "-inf") throw Error("a number is '" + text + "'");
  constexpr double infinity = std::numeric_limits<double>::infinity();
  number = text == "nan" ? std::numeric_limits<double>::quiet_NaN() : text == "inf" ? infinity : -infinity;
}
void read(const Json& json, Index& number) { number = json.get<Index>(); }
void read(const Json& json, Shape& shape) { shape = Shape(json.get<std::vector<Index>>()); }

void read(const Json& json, ArraySummary& s) {
  read(json.at("least"), s.least), read(json.at("largest"), s.largest), read(json.at("mean"), s.mean);
  read(json.at("spread"), s.spread), read(json.at("norm"), s.norm);
  read(json.at("nans"), s.nans), read(json.at("infinities"), s.infinities);
}

void read(const Json& json, ArrayNumbers& array) {
  read(json.at("shape"), array.shape);
  for (const Json& number : json.at("numbers")) read(number, array.numbers.emplace_back());
  if (static_cast<Index>(array.numbers.size()) != array.shape.size()) {
    throw Error(fmt::format("{} numbers for the shape {}", array.numbers.size(), to_string(array.shape)));
  }
}

template <class Value>
void read(const Json& json, const char* name, std::optional<Value>& value) {
  if (json.contains(name)) read(json.at(name), value.emplace());
}

void read(const Json& json, TapeArgument& argument);
void read(const Json& json, TapeRow& row);
void read(const Json& json, TapeTotal& total);
void read(const Json& json, AttentionTable& attention);
void read(const Json& json, PathRow& row);
void read(const Json& json, PathTable& table);

template <class Row>
void read_list(const Json& json, std::vector<Row>& rows) {
  if (!json.is_array()) throw Error("no list where one is expected");
  for (const Json& row : json) read(row, rows.emplace_back());
}

void read(const Json& json, TapeArgument& argument) {
  if (!json.is_null()) read(json, argument.node.emplace());
}

void read(const Json& json, TapeRow& row) {
  read(json.at("index"), row.index);
  json.at("op").get_to(row.op), json.at("label").get_to(row.label), json.at("scope").get_to(row.scope);
  read_list(json.at("inputs"), row.arguments);
  read(json.at("shape"), row.shape);
  json.at("type").get_to(row.type);
  read(json.at("bytes"), row.bytes), read(json.at("kept_bytes"), row.kept_bytes);
  read(json.at("flops"), row.flops);
  row.port = json.value("port", false), row.input = json.value("input", false);
  row.flops_assumed = json.value("flops_assumed", false);
  row.remark = json.value("kernel", "");
  read(json, "forward_start", row.forward_start), read(json, "forward_seconds", row.forward_seconds);
  read(json, "backward_start", row.backward_start), read(json, "backward_seconds", row.backward_seconds);
  read(json, "live_bytes_forward", row.live_bytes_forward);
  read(json, "live_bytes_backward", row.live_bytes_backward);
  read(json, "value", row.value), read(json, "gradient", row.gradient);
  read(json, "value_numbers", row.value_numbers), read(json, "gradient_numbers", row.gradient_numbers);
}

void read(const Json& json, TapeTotal& total) {
  json.at("name").get_to(total.name);
  read(json.at("nodes"), total.nodes), read(json.at("bytes"), total.bytes);
  read(json.at("kept_bytes"), total.kept_bytes), read(json.at("flops"), total.flops);
  read(json.at("forward_seconds"), total.forward_seconds);
  read(json.at("backward_seconds"), total.backward_seconds);
}

void read(const Json& json, AttentionTable& attention) {
  json.at("label").get_to(attention.label);
  read(json.at("node"), attention.node), read(json.at("weights"), attention.weights);
  read(json, "scores", attention.scores), read(json, "weight_gradient", attention.weight_gradient);
  attention.query_tokens = json.value("query_tokens", std::vector<std::string>());
  attention.key_tokens = json.value("key_tokens", std::vector<std::string>());
}

void read(const Json& json, PathRow& row) {
  json.at("name").get_to(row.name), json.at("label").get_to(row.label);
  read(json.at("node"), row.node), read(json.at("norm"), row.norm), read(json.at("share"), row.share);
  read(json.at("cosine"), row.cosine), read(json.at("largest"), row.largest);
  json.at("largest_at").get_to(row.largest_at);
  read(json, "gradient", row.gradient);
}

void read(const Json& json, PathTable& table) {
  read(json.at("node"), table.node);
  json.at("name").get_to(table.name);
  read(json, "head", table.head), read(json, "query_row", table.query_row);
  read_list(json.at("rows"), table.rows);
  read(json.at("total"), table.total);
  read(json, "gradient", table.total_numbers);
  read(json.at("sum_error"), table.sum_error), read(json.at("share_of_gradient"), table.share_of_gradient);
}

void require_schema(const Json& json) {
  const bool ours = json.is_object() && json.value("schema", "") == inspect_schema;
  if (!ours)
    throw Error(fmt::format("not written by tapehead inspect --json: no schema '{}'", inspect_schema));
  if (const Json& version = json.at("version"); version != inspect_schema_version) {
    throw Error(
        fmt::format("version {} of the schema, and only {} is read", version.dump(), inspect_schema_version));
  }
}

}  // namespace

void write_json(std::ostream& out, const TapeTable& table) {
  Json json = {{"schema", inspect_schema},
               {"version", inspect_schema_version},
               {"title", table.title},
               {"level", table.level},
               {"nodes", list_of(table.rows)},
               {"by_op", list_of(table.by_op)},
               {"by_label", list_of(table.by_label)},
               {"attention", list_of(table.attention)},
               {"paths", list_of(table.paths)}};
  if (!table.steps.empty()) json["steps"] = list_of(table.steps);
  out << json.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
}

TapeTable read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw FileError(path, "cannot be read");
  try {
    const Json json = Json::parse(file);
    require_schema(json);
    TapeTable table;
    json.at("title").get_to(table.title), json.at("level").get_to(table.level);
    read_list(json.at("nodes"), table.rows);
    read_list(json.at("by_op"), table.by_op), read_list(json.at("by_label"), table.by_label);
    read_list(json.at("attention"), table.attention);
    read_list(json.at("paths"), table.paths);
    return table;
  } catch (const Json::exception& error) {
    const std::string_view what(error.what());  // "[json.exception.type_error.302] type must be ..."
    throw FileError(path, detail::printable(what.substr(what.find(']') + 2)));
  } catch (const Error& error) {
    throw FileError(path, error.what());
  }
}

}  // namespace tapehead
