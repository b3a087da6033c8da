#include <tapehead/inspect/subject.h>

#include <charconv>

#include <fmt/format.h>

#include <tapehead/nn/safetensors.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

namespace tapehead::tools {
namespace {

template <class T>
class Dump {
 public:
  Dump(Tape<T>& tape, const InspectSettings& settings)
      : tape_(tape), settings_(settings), file_(settings.dump) {}

  Subject<T> built() {
    if (holds("x")) return projected();
    if (holds("query") || holds("q")) return attended();
    throw FileError(settings_.dump,
                    "nothing to attend to: expected query, key and value, or x, w_query, w_key and w_value");
  }

 private:
  bool holds(const std::string& name) const { return file_.contains(name); }

  // A setting of the metadata; empty when it is not there or "none".
  std::string setting(const std::string& name) const {
    const auto found = file_.metadata().find(name);
    return found == file_.metadata().end() || found->second == "none" ? std::string() : found->second;
  }
  template <class Number>
  std::optional<Number> number(const std::string& name) const {
    const std::string text = setting(name);
    if (text.empty()) return {};
    return parsed<Number>(name, text);
  }
  template <class Number>
  Number parsed(const std::string& name, const std::string& text) const {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) return value;
    throw FileError(settings_.dump,
                    fmt::format("the setting {} is '{}', no number", name, detail::printable(text)));
  }

  Var<T> entered(const std::string& name, Array<T> value) {
    subject_.inputs.push_back(tape_.input(std::move(value), name));
    return subject_.inputs.back();
  }
  Var<T> tensor(const std::string& name) {
    if (!holds(name)) throw FileError(settings_.dump, name, "expected, and missing");
    return entered(name, file_.read<T>(name));
  }
  Var<T> tensor(const std::string& name, const std::string& otherwise) {
    return entered(name, file_.read<T>(holds(name) ? name : otherwise));
  }
  // (in, out), whatever the file has.
  Var<T> weight(const std::string& name) {
    if (!holds(name)) throw FileError(settings_.dump, name, "expected, and missing");
    Array<T> w = file_.read<T>(name);
    if (setting("linear_weight_layout") == "(out,in)") w = transpose(Var<T>(std::move(w))).value();
    return entered(name, std::move(w));
  }
  Var<T> through(const Var<T>& x, const std::string& name) {
    const Var<T> w = weight("w_" + name);
    return holds("b_" + name) ? projection(x, w, tensor("b_" + name)) : projection(x, w);
  }

  Subject<T> projected() {
    const Var<T> x = tensor("x"), y = holds("y") ? tensor("y") : x;
    const Index heads = settings_.heads ? *settings_.heads : number<Index>("heads").value_or(1);
    const Index key_heads = number<Index>("kv_heads").value_or(heads);
    auto split = [&](const Var<T>& z, Index count) { return heads == 1 ? z : split_heads(z, count); };
    const Var<T> query = split(through(x, "query"), heads), key = split(through(y, "key"), key_heads),
                 value = split(through(y, "value"), key_heads);
    Var<T> output = attention(query, key, value, options(query, key)).output;
    if (heads > 1) output = merge_heads(output);
    if (holds("w_out")) output = through(output, "out");
    return finished(x, output);
  }

  Subject<T> attended() {
    const Var<T> query = tensor("query", "q"), key = tensor("key", "k"), value = tensor("value", "v");
    const std::string layout = setting("layout");
    const Index heads = settings_.heads ? *settings_.heads : number<Index>("heads").value_or(1);
    const Index key_heads = number<Index>("kv_heads").value_or(heads);
    if (layout == "BLHD") {
      auto swapped = [](const Var<T>& z) { return transpose(z, -3, -2); };
      const Var<T> q = swapped(query), k = swapped(key), v = swapped(value);
      return finished(query, swapped(attention(q, k, v, options(q, k)).output));
    }
    if (layout != "" && layout != "BHLD" && layout != "...HLD" && layout != "BLD") {
      throw FileError(settings_.dump, fmt::format("the layout is '{}'; BHLD, BLHD or BLD can be read",
                                                  detail::printable(layout)));
    }
    if (heads > 1 && query.rank() == 3) {
      const Var<T> q = split_heads(query, heads), k = split_heads(key, key_heads),
                   v = split_heads(value, key_heads);
      return finished(query, merge_heads(attention(q, k, v, options(q, k)).output));
    }
    return finished(query, attention(query, key, value, options(query, key)).output);
  }

  AttentionOptions<T> options(const Var<T>& query, const Var<T>& key) {
    AttentionOptions<T> options;
    options.kernel = kernel_of(settings_);
    if (const auto scale = number<double>("scale")) options.scale = *scale;
    options.softcap = number<double>("softcap").value_or(0);
    if (holds("bias")) options.bias = tensor("bias");
    if (holds("mask")) {
      add_mask(options);
    } else if (const auto offset = causal_offset(query.dim(-2), key.dim(-2))) {
      options.mask = Mask::causal(*offset);
    }
    return options;
  }

  void add_mask(AttentionOptions<T>& options) {
    const std::string means = setting("mask_means") + setting("mask_true_means");
    if (means == "additive" || file_.type("mask").starts_with("F") || file_.type("mask") == "BF16") {
      const Var<T> mask = file_.read<T>("mask");
      options.bias = options.bias ? *options.bias + mask : mask;
      return;
    }
    Array<bool> allowed = file_.read<bool>("mask");
    if (means == "blocked") {
      for (bool& key : allowed.mutable_values()) key = !key;
    }
    options.mask = Mask::allowed(allowed);
  }

  std::optional<Index> causal_offset(Index queries, Index keys) const {
    const std::string causal = setting("causal");
    if (causal.empty()) return {};
    if (causal == "top-left") return 0;
    if (causal == "bottom-right") return keys - queries;
    if (causal.starts_with("offset ")) return parsed<Index>("causal", causal.substr(7));
    throw FileError(
        settings_.dump,
        fmt::format("the setting causal is '{}'; none, top-left, bottom-right or offset N can be read",
                    detail::printable(causal)));
  }

  Subject<T> finished(const Var<T>& x, const Var<T>& output) {
    Var<T> total;
    if (holds("upstream")) {
      const Var<T> upstream = file_.read<T>("upstream");
      if (upstream.shape() != output.shape()) {
        throw FileError(settings_.dump, "upstream",
                        fmt::format("has the shape {}, and the output {}", to_string(upstream.shape()),
                                    to_string(output.shape())));
      }
      total = sum(output * upstream);
    } else {
      total = sum(output);
    }
    subject_.loss = total;
    subject_.x = x;
    subject_.title = fmt::format("attention on {}", settings_.dump);
    return std::move(subject_);
  }

  Tape<T>& tape_;
  const InspectSettings& settings_;
  SafetensorsFile file_;
  Subject<T> subject_;
};

}  // namespace

template <std::floating_point T>
Subject<T> dumped(Tape<T>& tape, const InspectSettings& settings) {
  return Dump<T>(tape, settings).built();
}

template Subject<float> dumped(Tape<float>&, const InspectSettings&);
template Subject<double> dumped(Tape<double>&, const InspectSettings&);

}  // namespace tapehead::tools
