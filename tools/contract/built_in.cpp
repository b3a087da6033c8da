#include <tapehead/core/gradient.h>
#include <tools/contract/subject.h>

namespace tapehead::contract {
namespace {

template <class T>
class BuiltIn : public Subject {
 public:
  BuiltIn(AttentionKernel kernel, Number number) : Subject(number), kernel_(kernel) {}

  Answer answer(const Problem& problem) const override {
    if (!problem.placement.usual()) throw Unsupported{"the built-in attention decides where its results lie"};
    AttentionOptions<T> options = options_of<T>(problem);
    options.kernel = kernel_;
    Tape<T> tape;
    const Var<T> query = tape.input(problem.query.cast<T>());
    const Var<T> key = tape.input(problem.key.cast<T>()), value = tape.input(problem.value.cast<T>());
    const AttentionResult<T> result = attention(query, key, value, options);
    Answer answer;
    answer.output = result.output.value().template cast<double>();
    if (result.log_sum_exp) answer.log_sum_exp = result.log_sum_exp->value().template cast<double>();
    if (problem.upstream.defined()) {
      const auto gradients =
          gradient_values(result.output, {query, key, value}, Var<T>(problem.upstream.cast<T>()));
      answer.dquery = gradients[0].template cast<double>();
      answer.dkey = gradients[1].template cast<double>();
      answer.dvalue = gradients[2].template cast<double>();
    }
    return answer;
  }

 private:
  AttentionKernel kernel_;
};

}  // namespace

std::unique_ptr<Subject> built_in(AttentionKernel kernel, Number number) {
  if (number == Number::f64) return std::make_unique<BuiltIn<double>>(kernel, number);
  return std::make_unique<BuiltIn<float>>(kernel, number);
}

}  // namespace tapehead::contract
