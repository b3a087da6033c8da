#include <tools/contract/command.h>

#include <charconv>
#include <cstdio>
#include <filesystem>

#include <CLI/CLI.hpp>

#include <tapehead/nn/file_error.h>
#include <tools/contract/report.h>
#include <tools/output.h>

namespace tapehead::contract {
namespace {

namespace fs = std::filesystem;

// A folder for dumps: the one that was asked for, or one that goes when this does.
class Folder {
 public:
  explicit Folder(const std::string& asked_for) : kept_(!asked_for.empty()), path_(asked_for) {
    if (!kept_) {
      path_ = (fs::temp_directory_path() / "tapehead-contract-XXXXXX").string();
      if (!::mkdtemp(path_.data())) throw FileError(path_, "cannot be made");
      return;
    }
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) throw FileError(path_, "cannot be made: " + error.message());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code error;
    if (!kept_) fs::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }
  bool kept() const { return kept_; }

 private:
  bool kept_;
  std::string path_;
};

void print(const std::string& text) {
  fmt::print("{}", text);
  tools::flush_output();
}

std::vector<const Claim*> chosen(const std::vector<std::string>& ids) {
  std::vector<const Claim*> result;
  for (const std::string& id : ids) {
    const Claim* claim = find_claim(id);
    if (!claim) throw DomainError("contract", fmt::format("there is no claim '{}'; --list shows them", id));
    result.push_back(claim);
  }
  if (ids.empty()) {
    for (const Claim& claim : claims()) result.push_back(&claim);
  }
  return result;
}

std::string list_of(const std::vector<const Claim*>& claims) {
  std::string text;
  for (const Claim* claim : claims) {
    text += fmt::format("{:<15} {:<13} {}\n", claim->id, claim->of, claim->sentence);
  }
  return text;
}

// CLI11's range takes NaN for a number in it.
CLI::Validator seconds() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        double number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool fits =
            error == std::errc() && end == text.data() + text.size() && number >= 0.01 && number <= 86400;
        return fits ? "" : "'" + text + "' is not a number from 0.01 to 86400";
      },
      "0.01 to 86400");
}

}  // namespace

void describe_contract(CLI::App& command, ContractSettings& settings) {
  command.footer(
      "Examples:\n"
      "  tapehead contract\n"
      "  tapehead contract --library ./mine.so --out failing\n"
      "  tapehead contract --library ./mine.so --claim repeatable --claim inside --json\n"
      "\n"
      "mine.so defines tapehead_forward and, if it likes, tapehead_backward, as "
      "<tapehead/tapehead_kernel.h>\n"
      "says; examples/kernels has one that is right and six that are not. Every claim runs in a process of\n"
      "its own. Exit code 0: all that was tried holds; 1: a claim fails; 2: the library cannot be used.");
  command
      .add_option("--library", settings.library,
                  "shared library of the kernel to try; without it the built-in attention is tried")
      ->check(CLI::ExistingFile);
  command.add_option("--claim", settings.claims, "try this one; may be said several times");
  command.add_option("--type", settings.type, "f64 or f32; both without it")
      ->check(CLI::IsMember({"f64", "f32"}));
  command
      .add_option(
          "--width", settings.width,
          "width of queries, keys and values that the kernel has, if it has no other: narrower ones get\n"
          "channels of zeros, wider ones are not tried")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{65'536}));
  command.add_option("--time-limit", settings.time_limit, "seconds for each claim")
      ->capture_default_str()
      ->check(seconds());
  command.add_option("--out", settings.out, "folder for dumps of failing calls, for tapehead check");
  command.add_flag("--list", settings.list, "say what the claims are, and try none");
  command.add_flag("--json", settings.json, "print one line of JSON");
}

int contract(const ContractSettings& settings) {
  const Folder folder(settings.list ? "" : settings.out);
  Trials trials;
  trials.library = settings.library, trials.width = settings.width;
  trials.claims = chosen(settings.claims);
  if (settings.type != "f32") trials.numbers.push_back(Number::f64);
  if (settings.type != "f64") trials.numbers.push_back(Number::f32);
  trials.seconds = settings.time_limit, trials.folder = folder.path();
  if (settings.list) {
    print(list_of(trials.claims));
    return 0;
  }
  std::vector<Table> tables;
  for (const AttentionKernel kernel : {AttentionKernel::composed, AttentionKernel::fused}) {
    trials.kernel = kernel;
    tables.push_back(try_claims(trials));
    if (!settings.library.empty()) break;
  }
  std::string text;
  int failed = 0;
  for (const Table& table : tables) {
    if (nothing_tried(table)) {
      throw FileError(table.subject,
                      "nothing could be tried; of the first claim, " + table.rows.at(0).results.at(0).where);
    }
    text += (text.empty() ? "" : "\n") + text_of(table, folder.kept());
    failed += failures(table);
  }
  print(settings.json ? json_of(tables, folder.kept()) : text);
  return failed > 0 ? 1 : 0;
}

}  // namespace tapehead::contract
