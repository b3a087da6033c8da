// Wrong: the backward pass takes w dw for the gradient of a score, without the mean of dw over the row. The
// forward pass is right, so only gradients show it.
#include <tapehead/tapehead_kernel.h>

#include <algorithm>
#include <cmath>
#include <vector>

const int32_t tapehead_kernel_version = TAPEHEAD_KERNEL_VERSION;

namespace {

struct Sizes {
  int64_t rows, L, S, D, E;
};
Sizes sizes_of(const tapehead_call& call) {
  return {call.query.shape[0] * call.query.shape[1] * call.query.shape[2], call.query.shape[2],
          call.key.shape[2], call.query.shape[3], call.value.shape[3]};
}

const double* numbers(const tapehead_input& x) { return static_cast<const double*>(x.data); }
double* numbers(const tapehead_output& x) { return static_cast<double*>(x.data); }

double dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t d = 0; d < count; ++d) sum += a[d] * b[d];
  return sum;
}
void add(double* y, double factor, const double* x, int64_t count) {
  for (int64_t d = 0; d < count; ++d) y[d] += factor * x[d];
}

std::vector<double> weights(const tapehead_call& call, const Sizes& n, int64_t row) {
  std::vector<double> w;
  const double* k = numbers(call.key) + row / n.L * n.S * n.D;
  for (int64_t j = 0; j < n.S; ++j) {
    w.push_back(call.scale * dot(numbers(call.query) + row * n.D, k + j * n.D, n.D));
  }
  const double most = *std::max_element(w.begin(), w.end());
  double sum = 0;
  for (double& x : w) sum += x = std::exp(x - most);
  for (double& x : w) x /= sum;
  return w;
}

bool supported(const tapehead_call& call) { return call.type == TAPEHEAD_F64 && call.features == 0; }

}  // namespace

int32_t tapehead_forward(const tapehead_call* call, const tapehead_results* results) {
  if (!supported(*call)) return TAPEHEAD_UNSUPPORTED;
  const Sizes n = sizes_of(*call);
  double* y = numbers(results->output);
  std::fill(y, y + n.rows * n.E, 0.0);
  for (int64_t row = 0; row < n.rows; ++row) {
    const double* v = numbers(call->value) + row / n.L * n.S * n.E;
    for (const double w : weights(*call, n, row)) add(y + row * n.E, w, v, n.E), v += n.E;
  }
  return TAPEHEAD_DONE;
}

int32_t tapehead_backward(const tapehead_call* call, const tapehead_upstream* upstream,
                          const tapehead_gradients* gradients) {
  const Sizes n = sizes_of(*call);
  const int64_t heads = n.rows / n.L;
  double *dq = numbers(gradients->dquery), *dk = numbers(gradients->dkey), *dv = numbers(gradients->dvalue);
  std::fill(dq, dq + n.rows * n.D, 0.0);
  std::fill(dk, dk + heads * n.S * n.D, 0.0), std::fill(dv, dv + heads * n.S * n.E, 0.0);
  for (int64_t row = 0; row < n.rows; ++row) {
    const double* dy = numbers(upstream->doutput) + row * n.E;
    int64_t j = row / n.L * n.S;
    for (const double w : weights(*call, n, row)) {
      const double dscore = call->scale * w * dot(dy, numbers(call->value) + j * n.E, n.E);
      add(dq + row * n.D, dscore, numbers(call->key) + j * n.D, n.D);
      add(dk + j * n.D, dscore, numbers(call->query) + row * n.D, n.D);
      add(dv + j++ * n.E, w, dy, n.E);
    }
  }
  return TAPEHEAD_DONE;
}
