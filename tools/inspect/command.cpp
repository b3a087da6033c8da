#include <tapehead/inspect/command.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iostream>
#include <limits>
#include <new>
#include <sstream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/inspect/diff.h>
#include <tapehead/inspect/dot.h>
#include <tapehead/inspect/html.h>
#include <tapehead/inspect/inspect.h>
#include <tapehead/inspect/json.h>
#include <tapehead/inspect/paths.h>
#include <tapehead/inspect/step.h>
#include <tapehead/inspect/subject.h>
#include <tapehead/inspect/svg.h>
#include <tapehead/inspect/text.h>
#include <tapehead/inspect/trace.h>
#include <tapehead/nn/file_error.h>
#include <tools/output.h>

namespace tapehead::tools {
namespace {

[[noreturn]] void reject(const std::string& what) { throw Error(what); }

template <class... Setting>
bool any(const Setting&... settings) {
  return (settings.has_value() || ...);
}

// What CLI11 cannot see: options that belong to something else.
void require_sense(const InspectSettings& s) {
  const int subjects = !s.what.empty() + !s.run.empty() + !s.dump.empty() + !s.diff.empty();
  if (subjects != 1) {
    reject(
        "give one of self-attention, cross-attention, additive, block, --run DIR, --dump FILE or --diff A B");
  }
  const bool other = s.what.empty();
  auto belongs = [](bool given, bool fits, const char* option, const char* to) {
    if (given && !fits) reject(fmt::format("{}: only for {}", option, to));
  };
  belongs(s.length || s.width, !other, "--length and --width", "the examples");
  belongs(s.batch.has_value(), !other || !s.run.empty(), "--batch", "the examples and --run");
  belongs(s.source.has_value(), s.what == "cross-attention" || s.what == "additive", "--source",
          "cross-attention and additive");
  belongs(s.layers || s.hidden, s.what == "block", "--layers and --hidden", "block");
  belongs(s.heads.has_value(), (!other && s.what != "additive") || !s.dump.empty(), "--heads",
          "self-attention, cross-attention, block and --dump");
  belongs(s.key_heads.has_value(), !other && s.what != "additive", "--key-heads",
          "self-attention, cross-attention and block");
  belongs(s.causal || any(s.window, s.valid), !other, "--causal, --window and --valid", "the examples");
  belongs(s.kernel == "fused", s.what != "additive", "--kernel fused", "attention by products");
  belongs(!s.type.empty(), s.run.empty(), "--type", "the examples and --dump: a trained model is f32");
  belongs(any(s.head, s.token) || !s.expand.empty(), !s.paths.empty(), "--head, --token and --expand",
          "--paths");
  const bool tape_option = !s.paths.empty() || s.step || !s.level.empty() || !s.sort.empty() ||
                           !s.only.empty() || !s.html.empty() || !s.dot.empty() || !s.trace.empty() ||
                           !s.svg.empty();
  if (!s.diff.empty() && tape_option) reject("--diff compares two files and takes no option but --json");
  belongs(s.step, s.paths.empty(), "--step", "a run without --paths");
  if (s.level == "rules" && (!s.trace.empty() || s.sort == "time" || s.sort == "gradient")) {
    reject("--trace, --sort time and --sort gradient need numbers that --level rules does not keep");
  }
  if (!s.svg.empty() && s.level != "" && s.level != "everything") {
    reject("--svg needs the weights, which only --level everything keeps");
  }
}

KeepLevel level_of(const InspectSettings& settings) {
  const bool pictures = !settings.html.empty() || !settings.svg.empty();
  if (settings.level == "rules") return KeepLevel::rules;
  if (settings.level == "everything" || (settings.level.empty() && pictures)) return KeepLevel::everything;
  return KeepLevel::statistics;
}

// Nothing is written when `write` throws.
template <class Write>
void write_file(const std::string& path, Write write) {
  if (path.empty()) return;
  std::ostringstream text;
  write(text);
  std::ofstream file(path, std::ios::binary);
  file << text.str();
  file.close();
  if (!file) throw FileError(path, "cannot be written");
}

SortBy order_of(const InspectSettings& settings) {
  return settings.sort == "time"       ? SortBy::time
         : settings.sort == "bytes"    ? SortBy::bytes
         : settings.sort == "gradient" ? SortBy::gradient
                                       : SortBy::tape;
}

template <class T>
void add_tokens(TapeTable& table, const Subject<T>& subject) {
  for (AttentionTable& attention : table.attention) {
    auto fits = [&](const std::vector<std::string>& tokens, int axis) {
      return static_cast<Index>(tokens.size()) == attention.weights.shape.dim(axis)
                 ? tokens
                 : std::vector<std::string>();
    };
    // In an encoder, the queries are the source as well.
    const bool encoder = attention.label.starts_with("encoder ");
    const bool crosses = attention.label.ends_with(" (2)");
    const bool decodes = attention.label.starts_with("decoder ") && !crosses;
    attention.query_tokens = fits(encoder ? subject.key_tokens : subject.query_tokens, -2);
    attention.key_tokens = fits(decodes ? subject.query_tokens : subject.key_tokens, -1);
  }
}

// The node that --paths means: x is what the subject calls so, unless an input is.
template <class T>
Index shared_node(const TapeTable& table, const Subject<T>& subject, const std::string& name) {
  const bool own =
      std::ranges::any_of(table.rows, [&](const TapeRow& row) { return row.input && row.label == name; });
  return name == "x" && !own ? Tape<T>::index_of("inspect", subject.x) : node_called(table, name);
}

void write_all(const InspectSettings& settings, TapeTable& table) {
  write_file(settings.html, [&](std::ostream& out) { write_html(out, table); });
  write_file(settings.svg, [&](std::ostream& out) { write_attention_svg(out, table); });
  if (!settings.only.empty()) table = only_label(table, settings.only);
  write_file(settings.dot, [&](std::ostream& out) { write_dot(out, table); });
  write_file(settings.trace, [&](std::ostream& out) { write_trace(out, table); });
  sort_rows(table, order_of(settings));
  TextOptions options = options_for(stdout);
  options.expand = settings.expand;
  std::ostringstream out;  // whole, or nothing
  if (settings.json) {
    write_json(out, table);
  } else if (settings.step) {
    out << table.title << "\n\n";
    write_steps(out, table, options);
  } else if (!settings.paths.empty()) {
    out << table.title << "\n";
    write_paths(out, table, options);
  } else {
    write_table(out, table, options);
  }
  std::cout << out.str();
  flush_output();
}

template <class T, class Build>
int inspect_tape(const InspectSettings& settings, Build build) {
  Tape<T> tape;
  Subject<T> subject;
  // The first run of code and the first touch of memory take many times as long as what follows: when times
  // are kept, they are those of a second run.
  const KeepLevel level = level_of(settings);
  for (int run = level == KeepLevel::rules ? 1 : 0; run < 2; ++run) {
    subject = {};
    tape.clear();
    tape.keep(run == 0 ? KeepLevel::rules : level);
    subject = build(tape, settings);
    gradient_values(Vars<T>(subject.loss), Vars<T>(subject.inputs));
  }
  TapeTable table = inspect(tape);
  table.title = subject.title;
  add_tokens(table, subject);
  const Index loss = Tape<T>::index_of("inspect", subject.loss);
  std::vector<Index> shared;
  for (const std::string& name : settings.paths) shared.push_back(shared_node(table, subject, name));
  if (shared.empty() && !settings.html.empty()) shared = shared_values(table);
  for (const Index x : shared) {
    table.paths.push_back(inspect_paths<T>(tape, loss, x, {settings.head, settings.token}));
  }
  if (settings.step) table.steps = inspect_steps<T>(table, subject.loss, subject.inputs);
  write_all(settings, table);
  return 0;
}

int compare(const InspectSettings& settings) {
  const TapeDiff changes = diff(read_json(settings.diff[0]), read_json(settings.diff[1]));
  settings.json ? write_diff_json(std::cout, changes) : write_diff(std::cout, changes, options_for(stdout));
  flush_output();
  return changes.differs() ? 1 : 0;
}

template <class Number>
CLI::Validator whole(Number from, Number to) {
  const std::string range = fmt::format("{} to {}", from, to);
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        Number number;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool fits =
            error == std::errc() && end == text.data() + text.size() && number >= from && number <= to;
        return fits ? "" : fmt::format("'{}' is not a whole number from {}", text, range);
      },
      range);
}

constexpr const char* examples =
    "Examples:\n"
    "  tapehead inspect self-attention --causal\n"
    "  tapehead inspect self-attention --paths x\n"
    "  tapehead inspect block --layers 2 --html block.html\n"
    "  tapehead inspect --run runs/recall --paths x --head 0\n"
    "  tapehead inspect --dump dump.safetensors --paths x --json\n"
    "  tapehead inspect --diff before.json after.json\n"
    "\n"
    "self-attention, cross-attention and additive attend with random numbers; block is layers of a "
    "transformer.\n"
    "x is what they read, y the source of cross-attention; parameters have names like query.w. --paths also\n"
    "takes a scope, \"layer 1\", for what it gives, and a node, %12.";

}  // namespace

void describe_inspect(CLI::App& command, InspectSettings& settings) {
  command.footer(examples);
  command.add_option("what", settings.what, "self-attention, cross-attention, additive or block")
      ->check(CLI::IsMember({"self-attention", "cross-attention", "additive", "block"}));
  command.add_option("--run", settings.run, "one training step of a model that `tapehead train --out` saved");
  command.add_option("--dump", settings.dump, "attention on the tensors of a .safetensors file");
  command.add_option("--diff", settings.diff, "what changed between two files of --json")->expected(2);

  auto size = [&](const char* name, std::optional<Index>& setting, Index from, const char* what) {
    command.add_option(name, setting, what)->check(whole<Index>(from, 1'000'000));
  };
  size("--batch", settings.batch, 1, "samples, 1 unless given");
  size("--length", settings.length, 1, "queries, 4 unless given");
  size("--source", settings.source, 1, "keys of another source, 6 unless given");
  size("--width", settings.width, 1, "width of x, 8 unless given");
  size("--heads", settings.heads, 1, "attention heads, 2 unless given");
  size("--key-heads", settings.key_heads, 1, "heads of keys and values, as many unless given");
  size("--layers", settings.layers, 1, "layers of block, 1 unless given");
  size("--hidden", settings.hidden, 0, "width of its feed-forward part, 4 times the width unless given");
  command.add_option("--seed", settings.seed, "same seed, same numbers")
      ->capture_default_str()
      ->check(whole<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max()));
  command.add_flag("--causal", settings.causal, "a query sees no key after its own position");
  size("--window", settings.window, 0, "a query sees its own position and so many before it");
  size("--valid", settings.valid, 1, "only so many keys may be seen");
  command.add_option("--kernel", settings.kernel, "composed shows the weights; fused or automatic does not")
      ->capture_default_str()
      ->check(CLI::IsMember({"composed", "fused", "automatic"}));
  command.add_option("--type", settings.type, "f32 or f64, which it is unless given")
      ->check(CLI::IsMember({"f32", "f64"}));

  command.add_option("--paths", settings.paths, "the ways by which a shared value gets its gradient")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  size("--head", settings.head, 0, "of --paths: what came by this head of each attention");
  size("--token", settings.token, 0, "of --paths: what came by this query row of each attention");
  command.add_option("--expand", settings.expand, "of --paths: the label whose rows are not grouped");
  command.add_flag("--step", settings.step, "the backward pass one node at a time, with its partial sums");

  command
      .add_option("--level", settings.level, "what is kept: rules, statistics (unless given) or everything")
      ->check(CLI::IsMember({"rules", "statistics", "everything"}));
  command.add_option("--sort", settings.sort, "rows by time, bytes or gradient, the largest first")
      ->check(CLI::IsMember({"time", "bytes", "gradient"}));
  command.add_option("--only", settings.only, "rows of this label alone");
  command.add_flag("--json", settings.json, "print one line of JSON");
  command.add_option("--html", settings.html, "write a page for the browser");
  command.add_option("--dot", settings.dot, "write a graph for Graphviz");
  command.add_option("--trace", settings.trace, "write times and memory for Perfetto");
  command.add_option("--svg", settings.svg, "write the attention weights as a picture");
}

int inspect_command(const InspectSettings& settings) try {
  require_sense(settings);
  if (!settings.diff.empty()) return compare(settings);
  if (!settings.run.empty()) return inspect_tape<float>(settings, trained);
  const bool single = settings.type == "f32";
  if (!settings.dump.empty()) {
    return single ? inspect_tape<float>(settings, dumped<float>)
                  : inspect_tape<double>(settings, dumped<double>);
  }
  return single ? inspect_tape<float>(settings, example<float>)
                : inspect_tape<double>(settings, example<double>);
} catch (const std::bad_alloc&) {
  throw Error("this takes more memory than there is");
}

}  // namespace tapehead::tools
