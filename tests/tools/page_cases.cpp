// Writes the pages that page_test.py opens, and the numbers that they must show: page_cases FOLDER
//   block.html, block.json   two layers with attention, everything kept; names that try to be markup
//   long.html, long.json     5,000 nodes in scopes, statistics alone

#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include <tapehead/inspect/html.h>
#include <tapehead/inspect/inspect.h>
#include <tapehead/inspect/paths.h>
#include <tapehead/tapehead.h>

namespace {

using namespace tapehead;
using Json = nlohmann::json;

constexpr const char* hostile = "</script><img src=x onerror=\"window.hacked = true\">";

Json json_of(const ArraySummary& of) {
  return {{"least", of.least},
          {"largest", of.largest},
          {"mean", of.mean},
          {"spread", of.spread},
          {"norm", of.norm}};
}

Json json_of(const TapeRow& row) {
  Json inputs = Json::array();
  for (const TapeArgument& argument : row.arguments)
    inputs.push_back(argument.node ? Json(*argument.node) : Json());
  Json json = {{"op", row.op},
               {"label", row.label},
               {"port", row.port},
               {"inputs", inputs},
               {"shape", std::vector<Index>(row.shape.begin(), row.shape.end())},
               {"forward", row.forward_seconds.value_or(0)},
               {"backward", row.backward_seconds.value_or(0)}};
  if (row.value) json["value"] = json_of(*row.value);
  if (row.gradient) json["gradient"] = json_of(*row.gradient);
  if (row.value_numbers) json["values"] = row.value_numbers->numbers;
  if (row.gradient_numbers) json["gradients"] = row.gradient_numbers->numbers;
  return json;
}

// Minus infinity, which JSON has not, becomes null.
Json json_of(const TapeTable& table) {
  Json json = {{"title", table.title}};
  for (const TapeRow& row : table.rows) json["rows"].push_back(json_of(row));
  for (const AttentionTable& attention : table.attention) {
    json["attention"].push_back({{"label", attention.label},
                                 {"node", attention.node},
                                 {"weights", attention.weights.numbers},
                                 {"scores", attention.scores->numbers},
                                 {"gradient", attention.weight_gradient->numbers},
                                 {"tokens", attention.key_tokens}});
  }
  for (const PathTable& paths : table.paths) {
    Json rows = Json::array();
    for (const PathRow& row : paths.rows) {
      rows.push_back({{"label", row.label},
                      {"node", row.node},
                      {"norm", row.norm},
                      {"share", row.share},
                      {"cosine", row.cosine}});
    }
    json["paths"].push_back({{"node", paths.node}, {"norm", paths.total.norm}, {"rows", rows}});
  }
  return json;
}

void write(const std::string& path, const TapeTable& table) {
  std::ofstream page(path + ".html");
  write_html(page, table);
  std::ofstream numbers(path + ".json");
  numbers << json_of(table).dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  if (!page.flush() || !numbers.flush()) throw FileError(path, "cannot be written");
}

TapeTable block() {
  Generator random(1);
  const EncoderLayer<double> layer =
      EncoderLayer<double>::initial(random, {.width = 8, .heads = 2, .hidden = 12});
  Tape<double> tape;
  tape.keep(KeepLevel::everything);
  const Var<double> x = tape.input(random.normal<double>({2, 5, 8}), "x");
  const AttentionOptions<double> options{.mask = Mask::causal(0), .kernel = AttentionKernel::composed};
  auto in_layer = [&](const char* name, const Var<double>& input) {
    const Scope<double> scope(tape, name);
    return on_tape(tape, layer)(input, options);
  };
  auto beside = [&] {  // stands in one rank with layer 1
    const Scope<double> scope(tape, "beside");
    return tanh(x * 0.5);
  };
  const Var<double> first = in_layer("layer 1", x);
  const Var<double> loss = sum(square(in_layer(hostile, first + beside())));
  gradient_values(loss, x);
  TapeTable table = inspect(tape);
  table.title = std::string("block ") + hostile;
  table.paths.push_back(inspect_paths(loss, x));
  for (AttentionTable& attention : table.attention) {
    attention.query_tokens = attention.key_tokens = {"the", "cat", hostile, "sat", "\xFF"};
  }
  return table;
}

TapeTable long_tape() {
  Tape<float> tape;
  tape.keep(KeepLevel::statistics);
  Var<float> x = tape.input(Array<float>::ones({4}), "x");
  const Var<float> start = x;
  for (int layer = 1; tape.size() < 5000; ++layer) {
    std::string name = "layer ";
    name += std::to_string(layer);
    const Scope<float> scope(tape, name);
    for (int i = 0; i < 9 && tape.size() < 5000; ++i) x = i % 3 == 0 ? tanh(x + start) : x * 0.5;
  }
  const Var<float> loss = sum(x);
  gradient_values(loss, start);
  TapeTable table = inspect(tape);
  table.title = "long";
  return table;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return std::cerr << "page_cases FOLDER\n", 2;
  const std::string folder = arguments[1];
  write(folder + "/block", block());
  write(folder + "/long", long_tape());
}
