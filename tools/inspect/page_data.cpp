#include <tapehead/inspect/page_data.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tapehead/inspect/formulas.h>
#include <tapehead/inspect/heat_map.h>
#include <tapehead/inspect/layout.h>

namespace tapehead {
namespace {

using Json = nlohmann::ordered_json;

// ---- Numbers

// With the six digits that the page shows.
double rounded(double x) { return std::strtod(fmt::format("{:.6g}", x).c_str(), nullptr); }

static_assert(std::endian::native == std::endian::little, "the page reads numbers in this order");

std::string base64(std::span<const unsigned char> bytes) {
  constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(bytes.size() - i, 3);
    unsigned group = 0;
    for (std::size_t k = 0; k < 3; ++k) group = group << 8 | (k < count ? bytes[i + k] : 0u);
    for (std::size_t k = 0; k < 4; ++k) text += k <= count ? digits[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

template <class Number>
std::string packed(std::span<const double> numbers) {
  std::vector<unsigned char> bytes(numbers.size() * sizeof(Number));
  unsigned char* next = bytes.data();
  for (const double x : numbers) {
    const auto number = static_cast<Number>(x);
    std::memcpy(next, &number, sizeof number);
    next += sizeof number;
  }
  return base64(bytes);
}

// ---- Arrays

constexpr Index full_count = 128;  // arrays of so many numbers are given in full
constexpr Index sides[] = {64, 48, 32, 24, 16, 12, 8, 6, 4};
constexpr std::size_t array_budget = 700'000;  // bytes of the page for all arrays that nodes hold
constexpr std::size_t attention_budget = 950'000;

struct Cells {
  Index side;

  // Of a small array all numbers, and as they are.
  bool in_full(const Shape& shape) const {
    const MatrixSize size = matrix_size(shape);
    return shape.size() <= full_count && size.rows <= side && size.columns <= side;
  }
  std::size_t bytes(const ArrayNumbers& array) const {
    const MatrixSize size = matrix_size(array.shape);
    const auto cells = static_cast<std::size_t>(std::min(size.rows, side) * std::min(size.columns, side));
    return 60 + cells * (in_full(array.shape) ? 11 : 6);
  }
  Json json_of(const ArrayNumbers& array) const {
    const MatrixSize size = matrix_size(array.shape);
    const HeatMap map = heat_map(array.numbers, size.rows, size.columns, side);
    Json json = {{"rows", map.rows}, {"columns", map.columns}};
    if (!map.exact()) {
      json["block"] = {map.block_rows, map.block_columns};
      json["array"] = {map.array_rows, map.array_columns};
    }
    in_full(array.shape) ? json["f64"] = packed<double>(map.cells) : json["f32"] = packed<float>(map.cells);
    return json;
  }
};

template <class F>
void for_each_array(const TapeTable& table, F f) {
  for (const TapeRow& row : table.rows) {
    if (row.value_numbers) f(*row.value_numbers);
    if (row.gradient_numbers) f(*row.gradient_numbers);
  }
  for (const PathTable& paths : table.paths) {
    for (const PathRow& row : paths.rows) {
      if (row.gradient) f(*row.gradient);
    }
  }
}

// The largest pictures that all arrays together have room for, none when not even small ones have.
std::optional<Cells> cells_for(const TapeTable& table) {
  for (const Index side : sides) {
    std::size_t bytes = 0;
    for_each_array(table, [&](const ArrayNumbers& array) { bytes += Cells{side}.bytes(array); });
    if (bytes <= array_budget) return Cells{side};
  }
  return {};
}

// ---- Nodes

Json json_of(const ArraySummary& of) {
  return {{"least", rounded(of.least)},   {"largest", rounded(of.largest)}, {"mean", rounded(of.mean)},
          {"spread", rounded(of.spread)}, {"norm", rounded(of.norm)},       {"nans", of.nans},
          {"infinities", of.infinities}};
}

Json json_of(const Shape& shape) { return std::vector<Index>(shape.begin(), shape.end()); }

template <class Value>
void put(Json& json, const char* name, const std::optional<Value>& value) {
  if (value) json[name] = json_of(*value);
}
void put(Json& json, const char* name, const std::optional<double>& value) {
  if (value) json[name] = rounded(*value);
}

Json json_of(const TapeRow& row, const std::optional<Cells>& cells) {
  Json json = {{"number", row.index},
               {"op", row.op},
               {"shape", json_of(row.shape)},
               {"type", row.type},
               {"bytes", row.bytes}};
  if (!row.label.empty()) json["label"] = row.label;
  if (row.input || row.port) json["named"] = row.input ? "input" : "port";
  Json inputs = Json::array();
  for (const TapeArgument& argument : row.arguments)
    inputs.push_back(argument.node ? Json(*argument.node) : Json());
  if (!inputs.empty()) json["inputs"] = inputs;
  if (row.kept_bytes != 0) json["kept"] = row.kept_bytes;
  if (row.flops != 0) json["flops"] = row.flops;
  if (row.flops_assumed) json["assumed"] = true;
  if (!row.remark.empty()) json["remark"] = row.remark;
  put(json, "forward", row.forward_seconds);
  put(json, "backward", row.backward_seconds);
  put(json, "value", row.value);
  put(json, "gradient", row.gradient);
  if (cells && row.value_numbers) json["values"] = cells->json_of(*row.value_numbers);
  if (cells && row.gradient_numbers) json["gradients"] = cells->json_of(*row.gradient_numbers);
  return json;
}

Json formulas_of(const TapeTable& table) {
  std::set<std::string_view> ops;
  for (const TapeRow& row : table.rows) ops.insert(row.op);
  Json json = Json::object();
  for (const std::string_view op : ops) {
    const OpFormula* formula = formula_of(op);
    if (!formula) continue;
    json[std::string(op)] = {
        {"formula", formula->formula}, {"gradient", formula->gradient}, {"words", formula->words}};
  }
  return json;
}

Json json_of(const TapeTotal& total) {
  return {{"name", total.name},
          {"nodes", total.nodes},
          {"bytes", total.bytes},
          {"flops", total.flops},
          {"forward", rounded(total.forward_seconds)},
          {"backward", rounded(total.backward_seconds)}};
}

// ---- Scopes

Json tenths(double x) { return std::round(10 * x) / 10; }

Json json_of(const LayoutItem& item) {
  constexpr const char* kinds[] = {"node", "scope", "source", "target"};
  return {kinds[static_cast<int>(item.kind)],
          item.id,
          tenths(item.centre.x),
          tenths(item.centre.y),
          tenths(item.width),
          tenths(item.height)};
}

Json json_of(const LayoutEdge& edge) {
  Json curve = Json::array(), uses = Json::array();
  for (const LayoutPoint& point : edge.curve)
    curve.push_back(tenths(point.x)), curve.push_back(tenths(point.y));
  for (const LayoutUse& use : edge.uses) uses.push_back(use.from), uses.push_back(use.to);
  return {edge.from, edge.to, curve, uses};
}

Json json_of(const LayoutScope& scope);

template <class Part>
Json list_of(const std::vector<Part>& parts) {
  Json json = Json::array();
  for (const Part& part : parts) json.push_back(json_of(part));
  return json;
}

Json json_of(const LayoutScope& scope) {
  Json json = {
      {"name", scope.name}, {"label", scope.label}, {"width", scope.width}, {"height", scope.height}};
  if (scope.parent) json["parent"] = *scope.parent;
  json["items"] = list_of(scope.items);
  json["edges"] = list_of(scope.edges);
  return json;
}

// ---- Attention

// How much of every attention there is room for.
struct AttentionRoom {
  Index side;
  bool all_samples;
};

Index heads_of(const AttentionTable& attention) {
  const Shape& shape = attention.weights.shape;
  return shape.rank() > 2 ? shape.dim(-3) : 1;
}
Index samples_of(const AttentionTable& attention, const AttentionRoom& room) {
  const Shape& shape = attention.weights.shape;
  return shape.rank() > 3 && room.all_samples
             ? shape.size() / std::max<Index>(shape.dim(-1) * shape.dim(-2) * shape.dim(-3), 1)
             : 1;
}

std::size_t bytes_of(const AttentionTable& attention, const AttentionRoom& room) {
  const Shape& shape = attention.weights.shape;
  const Index cells = samples_of(attention, room) * heads_of(attention) * std::min(shape.dim(-2), room.side) *
                      std::min(shape.dim(-1), room.side);
  const Index arrays = 1 + Index{attention.scores.has_value()} + Index{attention.weight_gradient.has_value()};
  return static_cast<std::size_t>(cells * arrays * 6);
}

// All samples while that leaves cells enough, otherwise the first alone.
AttentionRoom attention_room(const TapeTable& table) {
  for (const AttentionRoom least : {AttentionRoom{64, true}, AttentionRoom{1, false}}) {
    for (AttentionRoom room{256, least.all_samples}; room.side >= least.side; room.side = room.side * 3 / 4) {
      std::size_t bytes = 0;
      for (const AttentionTable& attention : table.attention) bytes += bytes_of(attention, room);
      if (bytes <= attention_budget) return room;
    }
  }
  return {1, false};
}

// The matrices of all heads of the samples that there is room for, of an array (B, H, L, S) or of fewer axes.
Json matrices_of(const ArrayNumbers& array, Index count, Index side) {
  const Index rows = array.shape.dim(-2), columns = array.shape.dim(-1);
  std::vector<double> cells;
  for (Index k = 0; k < count; ++k) {
    const auto size = static_cast<std::size_t>(rows * columns);
    const HeatMap map = heat_map(std::span(array.numbers).subspan(static_cast<std::size_t>(k) * size, size),
                                 rows, columns, side);
    cells.insert(cells.end(), map.cells.begin(), map.cells.end());
  }
  return packed<float>(cells);
}

Json json_of(const AttentionTable& attention, const AttentionRoom& room) {
  const Shape& shape = attention.weights.shape;
  const Index rows = shape.dim(-2), columns = shape.dim(-1), heads = heads_of(attention);
  const Index samples = shape.size() == 0 ? 0 : samples_of(attention, room), count = samples * heads;
  const std::vector<double> none(static_cast<std::size_t>(rows * columns));
  const HeatMap sizes = heat_map(none, rows, columns, room.side);
  Json json = {{"label", attention.label},
               {"node", attention.node},
               {"samples", samples},
               {"heads", heads},
               {"rows", sizes.rows},
               {"columns", sizes.columns},
               {"block", {sizes.block_rows, sizes.block_columns}},
               {"array", {rows, columns}},
               {"weights", matrices_of(attention.weights, count, room.side)}};
  if (samples_of(attention, {room.side, true}) > samples) json["onlyFirst"] = true;
  if (attention.scores) json["scores"] = matrices_of(*attention.scores, count, room.side);
  if (attention.weight_gradient) json["gradient"] = matrices_of(*attention.weight_gradient, count, room.side);
  if (!attention.query_tokens.empty()) json["queries"] = attention.query_tokens;
  if (!attention.key_tokens.empty()) json["keys"] = attention.key_tokens;
  return json;
}

// ---- Paths

Json json_of(const PathTable& paths, const std::optional<Cells>& cells) {
  Json rows = Json::array();
  for (const PathRow& row : paths.rows) {
    Json json = {{"name", row.name},
                 {"label", row.label},
                 {"node", row.node},
                 {"norm", rounded(row.norm)},
                 {"share", rounded(row.share)},
                 {"cosine", rounded(row.cosine)},
                 {"largest", rounded(row.largest)},
                 {"at", row.largest_at}};
    if (cells && row.gradient) json["gradients"] = cells->json_of(*row.gradient);
    rows.push_back(json);
  }
  return {{"node", paths.node},
          {"name", paths.name},
          {"norm", rounded(paths.total.norm)},
          {"error", rounded(paths.sum_error)},
          {"rows", rows}};
}

// With places in the rows instead of the numbers of nodes, which differ where rows were left out. What came
// from a node that was left out is like a constant; paths of such a value are left out.
TapeTable by_place(TapeTable table) {
  std::map<Index, Index> place;
  for (std::size_t i = 0; i < table.rows.size(); ++i) place[table.rows[i].index] = static_cast<Index>(i);
  auto has = [&](const auto& part) { return place.contains(part.node); };
  for (TapeRow& row : table.rows) {
    for (TapeArgument& argument : row.arguments) {
      if (argument.node)
        argument.node = place.contains(*argument.node) ? std::optional(place[*argument.node]) : std::nullopt;
    }
  }
  std::erase_if(table.attention, std::not_fn(has));
  std::erase_if(table.paths, std::not_fn(has));
  for (AttentionTable& attention : table.attention) attention.node = place[attention.node];
  for (PathTable& paths : table.paths) {
    std::erase_if(paths.rows, std::not_fn(has));
    paths.node = place[paths.node];
    for (PathRow& row : paths.rows) row.node = place[row.node];
  }
  return table;
}

// As the text of a script element: "<" could begin its end tag.
std::string for_script(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) c == '<' ? escaped += "\\u003c" : escaped += c;
  return escaped;
}

}  // namespace

std::string page_data(const TapeTable& given) {
  const bool whole = given.rows.empty() || given.rows.back().index + 1 == std::ssize(given.rows);
  const TapeTable table = whole ? given : by_place(given);
  const std::optional<Cells> cells = cells_for(table);
  Json json = {{"title", table.title}};
  if (!cells) json["noArrays"] = true;
  if (!whole) json["partial"] = true;
  json["formulas"] = formulas_of(table);
  json["rows"] = Json::array();
  for (const TapeRow& row : table.rows) json["rows"].push_back(json_of(row, cells));
  json["scopes"] = list_of(layout(table));
  json["byOp"] = list_of(table.by_op);
  json["byLabel"] = list_of(table.by_label);
  json["attention"] = Json::array();
  const AttentionRoom room = attention_room(table);
  for (const AttentionTable& attention : table.attention)
    json["attention"].push_back(json_of(attention, room));
  json["paths"] = Json::array();
  for (const PathTable& paths : table.paths) json["paths"].push_back(json_of(paths, cells));
  return for_script(json);
}

}  // namespace tapehead
