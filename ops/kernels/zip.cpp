#include <tapehead/ops/kernels/zip.h>

namespace tapehead::kernels {

ZipPlan::ZipPlan(const Shape& a, const Shape& b, const Shape& y) {
  const Strides sa(a, y), sb(b, y);
  Index extents[max_rank];
  int rank = 0;
  for (int i = 0; i < y.rank(); ++i) {
    if (y[i] == 1) continue;
    if (rank > 0 && step_a[rank - 1] == sa[i] * y[i] && step_b[rank - 1] == sb[i] * y[i]) {
      extents[rank - 1] *= y[i];
      step_a[rank - 1] = sa[i];
      step_b[rank - 1] = sb[i];
    } else {
      extents[rank] = y[i];
      step_a[rank] = sa[i];
      step_b[rank++] = sb[i];
    }
  }
  shape = Shape(std::span<const Index>(extents, static_cast<std::size_t>(rank)));
}

}  // namespace tapehead::kernels
