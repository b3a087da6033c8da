#include <tapehead/ops/kernels/simd/kernels.h>

namespace tapehead::kernels {

constinit const KernelSet avx2_kernels{table<float>(), table<double>()};

}  // namespace tapehead::kernels
