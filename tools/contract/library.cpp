#include <dlfcn.h>

#include <algorithm>

#include <fmt/format.h>

#include <tapehead/nn/file_error.h>
#include <tools/contract/placed.h>
#include <tools/contract/subject.h>

namespace tapehead::contract {
namespace {

struct Functions {
  decltype(&tapehead_forward) forward;
  decltype(&tapehead_backward) backward;  // null when there is none
};

Functions functions_of(const std::string& path) {
  // Without a slash the system would look in its own folders.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw FileError(path, fmt::format("cannot be loaded: {}", ::dlerror()));
  const auto* version = static_cast<const std::int32_t*>(::dlsym(handle, "tapehead_kernel_version"));
  if (!version) throw FileError(path, "has no tapehead_kernel_version; see <tapehead/tapehead_kernel.h>");
  if (*version != TAPEHEAD_KERNEL_VERSION) {
    throw FileError(path, fmt::format("is of version {} of <tapehead/tapehead_kernel.h>, expected {}",
                                      *version, TAPEHEAD_KERNEL_VERSION));
  }
  Functions functions;
  functions.forward = reinterpret_cast<decltype(&tapehead_forward)>(::dlsym(handle, "tapehead_forward"));
  functions.backward = reinterpret_cast<decltype(&tapehead_backward)>(::dlsym(handle, "tapehead_backward"));
  if (!functions.forward)
    throw FileError(path, "has no function tapehead_forward; see <tapehead/tapehead_kernel.h>");
  return functions;
}

std::uint32_t features_of(const Problem& p) {
  return (p.causal ? TAPEHEAD_CAUSAL : 0) | (p.window ? TAPEHEAD_WINDOW : 0) |
         (p.lengths.empty() ? 0 : TAPEHEAD_LENGTHS) | (p.mask.defined() ? TAPEHEAD_MASK : 0) |
         (p.bias.defined() ? TAPEHEAD_BIAS : 0) | (p.softcap != 0 ? TAPEHEAD_SOFTCAP : 0) |
         (p.sink.defined() ? TAPEHEAD_SINK : 0) | (p.key_heads() < p.heads() ? TAPEHEAD_GROUPED : 0) |
         (p.placement.order == Placement::Order::row_major ? 0 : TAPEHEAD_STRIDED) |
         (p.log_sum_exp ? TAPEHEAD_LSE : 0);
}

// What a refused call asked for; its type when it asked for nothing else.
std::string words_of(std::uint32_t features, Number number) {
  constexpr const char* names[] = {"causal",  "window", "lengths",       "mask",    "bias",
                                   "softcap", "sink",   "grouped heads", "strides", "log-sum-exp"};
  std::string text;
  for (std::size_t i = 0; i < std::size(names); ++i) {
    if (features >> i & 1) text.append(text.empty() ? "" : ", ").append(names[i]);
  }
  return text.empty() ? name_of(number) : text;
}

Array<double> numbers_of(const Array<bool>& x) {
  Array<double> y = Array<double>::uninitialized(x.shape());
  std::copy(x.values().begin(), x.values().end(), y.mutable_values().begin());
  return y;
}

Array<double> numbers_of(const std::vector<Index>& x) {
  Array<double> y = Array<double>::uninitialized({1, 1, 1, static_cast<Index>(x.size())});
  std::copy(x.begin(), x.end(), y.mutable_values().begin());
  return y;
}

// The arrays of one call.
template <class T>
class Stage {
 public:
  Stage(const Problem& p, Number number)
      : problem_(p),
        number_(number),
        query_("query", p.query.shape(), p.placement),
        key_("key", p.key.shape(), p.placement),
        value_("value", p.value.shape(), p.placement),
        mask_("mask", p.mask.defined() ? p.mask.shape() : Shape{1, 1, 1, 1}, flat()),
        bias_("bias", p.bias.defined() ? p.bias.shape() : Shape{1, 1, 1, 1}, flat()),
        sink_("sink", {1, 1, 1, p.heads()}, flat()),
        lengths_("key_lengths", {1, 1, 1, p.batches()}, flat()),
        doutput_("doutput", output_shape(), p.placement),
        output_("output", output_shape(), p.placement),
        lse_("lse", output_shape().with(3, 1), p.placement),
        dquery_("dquery", p.query.shape(), p.placement),
        dkey_("dkey", p.key.shape(), p.placement),
        dvalue_("dvalue", p.value.shape(), p.placement) {
    query_.hold(p.query), key_.hold(p.key), value_.hold(p.value);
    if (p.mask.defined()) mask_.hold(numbers_of(p.mask));
    if (p.bias.defined()) bias_.hold(p.bias);
    if (p.sink.defined()) sink_.hold(p.sink);
    if (!p.lengths.empty()) lengths_.hold(numbers_of(p.lengths));
    if (p.upstream.defined()) doutput_.hold(p.upstream);
    for (Placed<T>* result : {&output_, &lse_, &dquery_, &dkey_, &dvalue_}) {
      result->expect_result(p.placement.found);
    }
  }

  // Throws Unsupported and Error. `lse` is whether it is wanted.
  void forward(const Functions& functions, bool lse) {
    const tapehead_call call = described(lse);
    tapehead_results results = {output_.as_output(), {}};
    if (lse) results.lse = lse_.as_output();
    require_done("tapehead_forward", functions.forward(&call, &results), call.features);
    look_at(output_);
    if (lse) look_at(lse_);
  }

  void backward(const Functions& functions, bool lse) {
    const tapehead_call call = described(lse);
    tapehead_upstream upstream = {output_.as_input(), {}, doutput_.as_input()};
    if (lse) upstream.lse = lse_.as_input();
    const tapehead_gradients gradients = {dquery_.as_output(), dkey_.as_output(), dvalue_.as_output()};
    const Array<double> before = output_.numbers();
    require_done("tapehead_backward", functions.backward(&call, &upstream, &gradients), call.features);
    look_at(dquery_), look_at(dkey_), look_at(dvalue_), look_at(output_);
    const Array<double> after = output_.numbers();
    if (std::memcmp(before.data(), after.data(), before.bytes()) != 0) answer_.changed.push_back("output");
  }

  Answer answer(bool lse) {
    notice(query_), notice(key_), notice(value_);
    if (problem_.mask.defined()) notice(mask_);
    if (problem_.bias.defined()) notice(bias_);
    if (problem_.sink.defined()) notice(sink_);
    if (!problem_.lengths.empty()) notice(lengths_);
    answer_.output = output_.numbers();
    if (lse) answer_.log_sum_exp = lse_.numbers().reshape(output_shape().first(3));
    if (problem_.upstream.defined()) {
      notice(doutput_);
      answer_.dquery = dquery_.numbers(), answer_.dkey = dkey_.numbers(), answer_.dvalue = dvalue_.numbers();
    }
    return answer_;
  }

 private:
  Placement flat() const {
    Placement placement = problem_.placement;
    placement.order = Placement::Order::row_major;
    return placement;
  }
  Shape output_shape() const { return problem_.scores().with(3, problem_.value_width()); }

  tapehead_call described(bool lse) const {
    tapehead_call call = {};
    call.type = number_ == Number::f64 ? TAPEHEAD_F64 : TAPEHEAD_F32;
    call.features = features_of(problem_) | (lse ? TAPEHEAD_LSE : 0);
    call.query = query_.as_input(), call.key = key_.as_input(), call.value = value_.as_input();
    call.scale = problem_.scale_in_force(), call.softcap = problem_.softcap, call.offset = problem_.offset;
    if (problem_.window) {
      call.window_left = problem_.window->left, call.window_right = problem_.window->right;
    }
    if (!problem_.lengths.empty()) call.key_lengths = lengths_.data();
    if (problem_.mask.defined()) call.mask = repeated(mask_.as_input());
    if (problem_.bias.defined()) call.bias = repeated(bias_.as_input());
    if (problem_.sink.defined()) call.sink = sink_.data();
    return call;
  }

  tapehead_input repeated(tapehead_input x) const {
    const Shape scores = problem_.scores();
    for (int axis = 0; axis < 4; ++axis) {
      if (x.shape[axis] == 1) x.stride[axis] = 0;
      x.shape[axis] = scores[axis];
    }
    return x;
  }

  void require_done(const char* function, std::int32_t status, std::uint32_t features) const {
    if (status == TAPEHEAD_UNSUPPORTED) throw Unsupported{words_of(features, number_)};
    if (status != TAPEHEAD_DONE) throw DomainError(function, fmt::format("returned {}", status));
  }

  template <class U>
  void look_at(const Placed<U>& result) {
    const Index lost = result.marks_lost();
    if (lost > 0)
      answer_.outside.push_back(fmt::format("{} bytes beside {} were written", lost, result.name()));
  }
  template <class U>
  void notice(const Placed<U>& input) {
    if (!input.unchanged()) answer_.changed.push_back(input.name());
  }

  const Problem& problem_;
  Number number_;
  Placed<T> query_, key_, value_;
  Placed<std::uint8_t> mask_;
  Placed<T> bias_, sink_;
  Placed<std::int64_t> lengths_;
  Placed<T> doutput_, output_, lse_, dquery_, dkey_, dvalue_;
  Answer answer_;
};

class Library : public Subject {
 public:
  Library(const std::string& path, Number number, std::optional<Index> width)
      : Subject(number), functions_(functions_of(path)), width_(width) {}

  Answer answer(const Problem& problem) const override {
    if (!width_) return answer_as_it_is(problem);
    if (std::max(problem.width(), problem.value_width()) > *width_) {
      throw Unsupported{fmt::format("more than {} channels", *width_)};
    }
    return narrowed(answer_as_it_is(widened(problem, *width_)), problem.width(), problem.value_width());
  }

 private:
  Answer answer_as_it_is(const Problem& problem) const {
    return number() == Number::f64 ? answer_in<double>(problem) : answer_in<float>(problem);
  }
  template <class T>
  Answer answer_in(const Problem& problem) const {
    const bool gradients = problem.upstream.defined();
    if (gradients && !functions_.backward) throw Unsupported{"gradients"};
    Stage<T> stage(problem, number());
    bool lse = problem.log_sum_exp || gradients;
    try {
      stage.forward(functions_, lse);
    } catch (const Unsupported&) {
      if (problem.log_sum_exp || !lse) throw;
      lse = false;  // then backward does without
      stage.forward(functions_, lse);
    }
    if (gradients) stage.backward(functions_, lse);
    return stage.answer(lse);
  }

  Functions functions_;
  std::optional<Index> width_;
};

}  // namespace

std::unique_ptr<Subject> library(const std::string& path, Number number, std::optional<Index> width) {
  return std::make_unique<Library>(path, number, width);
}

}  // namespace tapehead::contract
