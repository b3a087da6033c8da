// The command tapehead. Only this file knows its command line.

#include <charconv>
#include <exception>
#include <iostream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <tapehead/inspect/command.h>
#include <tools/cache.h>
#include <tools/check/command.h>
#include <tools/contract/command.h>
#include <tools/doctor.h>
#include <tools/train/train.h>

namespace {

using tapehead::tools::CacheSettings;
using tapehead::tools::DoctorSettings;
using tapehead::tools::TrainSettings;

constexpr int unusable = 2;  // exit code for input or arguments that cannot be used

template <class Number>
bool reads(const std::string& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// CLI11 would take -1 for the largest number there is, and NaN for a number in any range.
CLI::Validator seed() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        std::uint64_t number;
        return reads(text, number) ? "" : "'" + text + "' is not a whole number from 0 to 2^64 - 1";
      },
      "0 to 2^64 - 1");
}
CLI::Validator count() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        tapehead::Index number;
        const bool fits = reads(text, number) && number >= 1;
        return fits ? "" : "'" + text + "' is not a whole number from 1 to 2^63 - 1";
      },
      "at least 1");
}
CLI::Validator number_from(double low) {
  constexpr double high = 1000;
  const std::string range = fmt::format("a number from {} to {}", low, high);
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        double number;
        const bool fits = reads(text, number) && number >= low && number <= high;
        return fits ? "" : "'" + text + "' is not " + range;
      },
      range);
}

void describe_train(CLI::App& command, TrainSettings& settings) {
  command.footer(
      "Examples:\n"
      "  tapehead train recall --seed 1 --out runs/recall\n"
      "  tapehead train reverse --cross\n"
      "  tapehead train lm --text /usr/share/common-licenses/GPL-3 --json\n"
      "\n"
      "recall: a causal two-layer model reads 8 key-value pairs, then the keys in another order, and writes "
      "the values.\n"
      "reverse: a sequence is written backwards; with --cross by an encoder-decoder with cross-attention.\n"
      "lm: a causal model learns the characters of a UTF-8 text; its last tenth is held out.");
  command.add_option("task", settings.task, "recall, reverse or lm")
      ->required()
      ->check(CLI::IsMember({"recall", "reverse", "lm"}));
  command.add_flag("--cross", settings.cross, "reverse: encoder-decoder with cross-attention");
  command.add_option("--text", settings.text, "lm: the UTF-8 text file to learn")->check(CLI::ExistingFile);
  command.add_option("--seed", settings.seed, "same seed, same numbers, bit for bit")
      ->capture_default_str()
      ->check(seed());
  auto whole = [](tapehead::Index from, tapehead::Index to) { return CLI::Range(from, to); };
  command.add_option("--steps", settings.steps, "training steps")->check(whole(1, 100'000'000));
  command.add_option("--batch", settings.batch, "sequences a step")->check(whole(1, 16'384));
  command.add_option("--width", settings.width, "width of the model, a multiple of the heads")
      ->check(whole(1, 16'384));
  command.add_option("--heads", settings.heads, "attention heads")->check(whole(1, 1024));
  command.add_option("--layers", settings.layers, "layers")->check(whole(1, 1024));
  command.add_option("--hidden", settings.hidden, "width of the feed-forward part, 0 for none")
      ->check(whole(0, 65'536));
  command.add_option("--context", settings.context, "lm: characters the model sees")->check(whole(2, 16'384));
  command.add_option("--rate", settings.rate, "highest learning rate")->check(number_from(1e-9));
  command.add_option("--decay", settings.decay, "weight decay")->check(number_from(0));
  command.add_option("--threads", settings.threads, "threads; the numbers do not depend on it")
      ->check(whole(1, 1024));
  command.add_option("--out", settings.out,
                     "folder for the model, the log and the report; nothing is written without");
  command.add_flag("--json", settings.json, "print one line of JSON");
}

// What CLI11 cannot see: options that belong to another task.
void require_sense(const TrainSettings& settings) {
  auto reject = [](const std::string& what) { throw CLI::ValidationError("train", what); };
  if (settings.task == "lm" && settings.text.empty()) reject("lm needs --text FILE");
  if (settings.task != "lm" && !settings.text.empty()) reject("--text is for lm");
  if (settings.task != "lm" && settings.context) reject("--context is for lm");
  if (settings.task != "reverse" && settings.cross) reject("--cross is for reverse");
}

void describe_cache(CLI::App& command, CacheSettings& settings) {
  command.footer(
      "Examples:\n"
      "  tapehead cache --layers 80 --kv-heads 64 --length 32768 --width 128 --bytes 2\n"
      "  tapehead cache --layers 80 --kv-heads 8 --length 32768 --width 128 --bytes 2 --batch 4 --json\n"
      "\n"
      "Keys and values of every token stay, in every layer:\n"
      "  2 x layers x kv-heads x length x width x bytes x batch");
  auto number = [&](const char* name, auto& setting, const char* what) {
    return command.add_option(name, setting, what)->check(count());
  };
  number("--layers", settings.layers, "layers with attention over the cache")->required();
  number("--kv-heads", settings.kv_heads, "key/value heads; fewer than query heads when those share")
      ->required();
  number("--length", settings.length, "tokens of a sequence")->required();
  number("--width", settings.width, "width of a head's keys, and of its values")->required();
  number("--value-width", settings.value_width, "width of its values when it is another");
  number("--bytes", settings.bytes, "bytes of a number: 2 for f16 and bf16, 4 for f32")->required();
  number("--batch", settings.batch, "sequences")->capture_default_str();
  command.add_flag("--json", settings.json, "print one line of JSON");
}

void describe_doctor(CLI::App& command, DoctorSettings& settings) {
  command.footer(
      "Examples:\n"
      "  tapehead doctor\n"
      "  tapehead doctor --json\n"
      "\n"
      "Takes a few seconds, in which it measures matrix products and attention. Each thing that is slower "
      "than it "
      "need be gets a sentence.");
  command.add_flag("--json", settings.json, "print one line of JSON");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("tapehead: reverse-mode autodiff in which attention is a composition you can take apart.",
               "tapehead");
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", "tapehead " TAPEHEAD_VERSION);
  app.footer(
      "Examples:\n"
      "  tapehead train recall --seed 1 --out runs/recall\n"
      "  tapehead check dump.safetensors\n"
      "  tapehead contract --library ./kernel.so\n"
      "  tapehead inspect self-attention --paths x\n"
      "  tapehead cache --layers 80 --kv-heads 8 --length 32768 --width 128 --bytes 2\n"
      "\n"
      "tapehead COMMAND --help shows a command's options and examples.");
  TrainSettings train_settings;
  CLI::App& train = *app.add_subcommand("train", "Train a small model on a toy task or a text");
  describe_train(train, train_settings);
  CacheSettings cache_settings;
  CLI::App& cache = *app.add_subcommand("cache", "Say what the key/value cache of a model takes in memory");
  describe_cache(cache, cache_settings);
  tapehead::check::CheckCommand check_settings;
  CLI::App& check = *app.add_subcommand(
      "check", "Compare somebody's attention numbers to the reference and name the mistake");
  tapehead::check::describe_check(check, check_settings);
  tapehead::contract::ContractSettings contract_settings;
  CLI::App& contract = *app.add_subcommand(
      "contract", "Run every claim of the derivation on an attention: ours, or a library's");
  tapehead::contract::describe_contract(contract, contract_settings);
  tapehead::tools::InspectSettings inspect_settings;
  CLI::App& inspect = *app.add_subcommand("inspect", "Show a tape, its gradients and the paths they came by");
  tapehead::tools::describe_inspect(inspect, inspect_settings);
  DoctorSettings doctor_settings;
  CLI::App& doctor = *app.add_subcommand("doctor", "Say what this machine offers and whether it is used");
  describe_doctor(doctor, doctor_settings);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) throw CLI::RequiredError("A command");
    if (train.parsed()) require_sense(train_settings);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    if (!std::cout.flush()) {
      std::cerr << "tapehead: standard output: cannot be written\n";
      return unusable;
    }
    return status == 0 ? 0 : unusable;
  }
  try {
    if (train.parsed()) tapehead::tools::train(train_settings);
    if (cache.parsed()) tapehead::tools::cache(cache_settings);
    if (check.parsed()) return tapehead::check::check_command(check_settings);
    if (contract.parsed()) return tapehead::contract::contract(contract_settings);
    if (inspect.parsed()) return tapehead::tools::inspect_command(inspect_settings);
    if (doctor.parsed()) tapehead::tools::doctor(doctor_settings);
  } catch (const std::exception& error) {
    std::cerr << "tapehead " << app.get_subcommands().front()->get_name() << ": " << error.what() << "\n";
    return unusable;
  }
  return 0;
}
