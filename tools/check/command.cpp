#include <tools/check/command.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <tapehead/nn/file_error.h>
#include <tools/check/report.h>
#include <tools/output.h>

namespace tapehead::check {
namespace {

constexpr int unusable = 2;

std::string with_dashes(std::string_view key) {
  std::string flag(key);
  std::ranges::replace(flag, '_', '-');
  return "--" + flag;
}

std::map<std::string, std::string> names_of(const std::vector<std::string>& pairs) {
  std::map<std::string, std::string> names;
  for (const std::string& pair : pairs) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size()) {
      throw Unusable(
          fmt::format("--name: expected NAME=TENSOR, as in output=ctx, and is {}", detail::printable(pair)));
    }
    if (!names.emplace(pair.substr(0, equals), pair.substr(equals + 1)).second) {
      throw Unusable(fmt::format("--name: {} is given twice", pair.substr(0, equals)));
    }
  }
  return names;
}

// Flags go ahead of the spec.
CheckSettings settings_of(const CheckCommand& command) {
  CheckSettings settings;
  settings.settings = command.settings;
  if (!command.spec.empty()) {
    const std::map<std::string, std::string> spec = settings_of_json_file(command.spec);
    read_settings(spec, command.spec);
    settings.settings.insert(spec.begin(), spec.end());
  }
  settings.names = names_of(command.names);
  settings.against = command.against;
  if (!command.probe.empty() && command.dumps.size() > 1) {
    throw Unusable(fmt::format("--probe: expected one dump, and are {}", command.dumps.size()));
  }
  return settings;
}

void write_probe(const CheckCommand& command, const Dump& dump, const CheckSettings& settings,
                 const Report& report) {
  if (command.probe.empty()) return;
  if (report.diagnosis.alternatives.empty()) {
    fmt::print(stderr,
               "tapehead check: {}: no probe is needed: there are no two explanations to tell apart\n",
               dump.origin);
    return;
  }
  write_dump(command.probe, separating_dump(dump, settings, report));
  fmt::print(stderr, "tapehead check: {}: compute attention on it, add the output and check that\n",
             command.probe);
}

int check_one(const CheckCommand& command, const CheckSettings& settings, const std::string& path) {
  const Dump dump = open_dump(path, settings.names);
  const Report report = check(dump, settings);
  command.json ? fmt::print("{}\n", report_json(report)) : fmt::print("{}", report_text(report));
  write_probe(command, dump, settings, report);
  return exit_code(report);
}

int refuse(const CheckCommand& command, const std::string& path, const std::string& why) {
  if (command.json) fmt::print("{}\n", unusable_json(path, why));
  fmt::print(stderr, "tapehead check: {}\n", why);
  return unusable;
}

// The exit code for one dump, whatever is wrong with it.
int outcome(const CheckCommand& command, const CheckSettings& settings, const std::string& path) {
  try {
    return check_one(command, settings, path);
  } catch (const std::bad_alloc&) {
    return refuse(command, path, path + ": takes more memory than there is");
  } catch (const std::exception& error) {
    return refuse(command, path, error.what());
  }
}

}  // namespace

void describe_check(CLI::App& app, CheckCommand& command) {
  app.footer(
      "Examples:\n"
      "  tapehead check dump.safetensors --causal top-left\n"
      "  tapehead check dump.safetensors --name output=ctx --scale 0.125 --json\n"
      "  tapehead check first.safetensors --against second.safetensors\n"
      "\n"
      "A dump is a .safetensors file, or a folder of .npy files with settings in spec.json. From PyTorch:\n"
      "  from safetensors.torch import save_file\n"
      "  out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
      "  save_file({n: t.clone(memory_format=torch.contiguous_format) for n, t in dict(q=q, k=k, v=v, "
      "out=out)"
      ".items()}, \"dump.safetensors\", {\"causal\": \"top-left\"})\n"
      "Then: tapehead check dump.safetensors\n"
      "\n"
      "Exit code: 0 every dump agrees, 1 one does not, 2 one cannot be used.");
  app.add_option("dumps", command.dumps, "files or folders")->required()->type_name("DUMP");
  app.add_option("--spec", command.spec, "settings as a JSON object, ahead of those in the dump")
      ->type_name("FILE");
  app.add_option("--name", command.names, "which tensor is which: output=ctx")
      ->type_name("NAME=TENSOR")
      ->expected(1)
      ->take_all();
  app.add_option("--against", command.against, "another dump of the same call: where the two part")
      ->type_name("DUMP");
  app.add_option("--probe", command.probe, "where to write the smallest input that tells explanations apart")
      ->type_name("FILE");
  for (const SettingKey& setting : setting_keys()) {
    const std::string key(setting.key);
    app.add_option_function<std::string>(
           with_dashes(key), [&command, key](const std::string& value) { command.settings[key] = value; },
           fmt::format("{}; when not said: {}", setting.values, setting.absent))
        ->type_name("VALUE")
        ->group("Settings, ahead of those of the spec and the dump");
  }
  app.add_flag("--json", command.json, "one line of JSON a dump");
}

int check_command(const CheckCommand& command) {
  const CheckSettings settings = settings_of(command);
  int worst = 0;
  for (const std::string& path : command.dumps) worst = std::max(worst, outcome(command, settings, path));
  tools::flush_output();
  return worst;
}

}  // namespace tapehead::check
