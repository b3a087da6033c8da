#include <tapehead/inspect/subject.h>

#include <cmath>

#include <fmt/format.h>

#include <tapehead/nn/model.h>
#include <tapehead/nn/transformer.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/reduction.h>

namespace tapehead::tools {
namespace {

template <class T>
class Builder {
 public:
  Builder(Tape<T>& tape, const InspectSettings& settings)
      : tape_(tape), settings_(settings), random_(Generator(settings.seed).split("inspect")) {}

  Subject<T> built() {
    if (settings_.what == "self-attention") return self_attention();
    if (settings_.what == "cross-attention") return cross_attention();
    if (settings_.what == "additive") return additive();
    return block();
  }

 private:
  Subject<T> self_attention() {
    const Var<T> x = given("x", length_);
    const auto layer = parameters_of(projections());
    return finished(x, layer(x, options()).output);
  }

  Subject<T> cross_attention() {
    const Var<T> x = given("x", length_), y = given("y", source_);
    const auto layer = parameters_of(projections());
    return finished(x, layer(x, y, options()).output);
  }

  Subject<T> additive() {
    const Var<T> x = given("x", length_), y = given("y", source_);
    auto matrix = [&](const char* name, const Shape& shape) {
      return entered(name, random_.uniform<T>(shape, -bound(), bound()));
    };
    AdditiveScoring<T> scoring;
    scoring.w_query = matrix("w_query", {width_, width_});
    scoring.w_key = matrix("w_key", {width_, width_});
    scoring.v = matrix("v", {width_});
    return finished(x, additive_attention(x, y, y, scoring, options()).output);
  }

  Subject<T> block() {
    TransformerOptions sizes;
    sizes.width = width_, sizes.heads = heads_, sizes.hidden = settings_.hidden.value_or(4 * width_);
    sizes.key_heads = settings_.key_heads.value_or(0);
    const Var<T> x = given("x", length_);
    Var<T> y = x;
    for (Index i = 0; i < settings_.layers.value_or(1); ++i) {
      const Scope<T> scope(tape_, fmt::format("layer {}", i + 1));
      const auto layer = parameters_of(EncoderLayer<T>::initial(random_, sizes));
      y = layer(y, options());
    }
    return finished(x, y);
  }

  Var<T> given(const char* name, Index length) {
    return entered(name, random_.normal<T>({settings_.batch.value_or(1), length, width_}));
  }
  Var<T> entered(const char* name, Array<T> value) {
    subject_.inputs.push_back(tape_.input(std::move(value), name));
    return subject_.inputs.back();
  }

  MultiHeadAttention<T> projections() {
    typename MultiHeadAttention<T>::Form form;
    form.key_heads = settings_.key_heads.value_or(0);
    return MultiHeadAttention<T>::initial(random_, width_, heads_, form);
  }
  template <class Layer>
  Layer parameters_of(const Layer& layer) {
    const Layer recorded = on_tape(tape_, layer);
    for (const Var<T>& parameter : parameters<T>(recorded)) subject_.inputs.push_back(parameter);
    return recorded;
  }
  double bound() const { return 1 / std::sqrt(static_cast<double>(width_)); }

  AttentionOptions<T> options() const {
    AttentionOptions<T> options;
    if (settings_.causal) options.mask = options.mask & Mask::causal(0);
    if (settings_.window) options.mask = options.mask & Mask::window(*settings_.window, 0);
    if (settings_.valid) options.mask = options.mask & Mask::lengths(*settings_.valid);
    options.kernel = kernel_of(settings_);
    return options;
  }

  Subject<T> finished(const Var<T>& x, const Var<T>& output) {
    const Var<T> upstream = random_.normal<T>(output.shape());
    subject_.loss = sum(output * upstream);
    subject_.x = x;
    subject_.title = fmt::format("{}: x {}, {} {}, seed {}", settings_.what, to_string(x.shape()), heads_,
                                 heads_ == 1 ? "head" : "heads", settings_.seed);
    return std::move(subject_);
  }

  Tape<T>& tape_;
  const InspectSettings& settings_;
  Generator random_;
  Index length_ = settings_.length.value_or(4), source_ = settings_.source.value_or(6),
        width_ = settings_.width.value_or(8);
  Index heads_ = settings_.what == "additive" ? 1 : settings_.heads.value_or(2);
  Subject<T> subject_;
};

}  // namespace

AttentionKernel kernel_of(const InspectSettings& settings) {
  return settings.kernel == "fused"       ? AttentionKernel::fused
         : settings.kernel == "automatic" ? AttentionKernel::automatic
                                          : AttentionKernel::composed;
}

template <std::floating_point T>
Subject<T> example(Tape<T>& tape, const InspectSettings& settings) {
  return Builder<T>(tape, settings).built();
}

template Subject<float> example(Tape<float>&, const InspectSettings&);
template Subject<double> example(Tape<double>&, const InspectSettings&);

}  // namespace tapehead::tools
