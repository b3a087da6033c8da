#pragma once
// The levels of vector instructions, for tests that try each one that the machine has.

#include <vector>

#include <tapehead/ops/kernels/processor.h>

namespace tapehead {

inline std::vector<kernels::Arch> archs_here() {
  std::vector<kernels::Arch> archs;
  for (const kernels::Arch arch : {kernels::Arch::baseline, kernels::Arch::avx2, kernels::Arch::avx512}) {
    if (kernels::processor_has(arch)) archs.push_back(arch);
  }
  return archs;
}

// One level while it lives.
class WithArch {
 public:
  explicit WithArch(kernels::Arch arch) { kernels::use_arch(arch); }
  ~WithArch() { kernels::use_arch(before_); }
  WithArch(const WithArch&) = delete;
  WithArch& operator=(const WithArch&) = delete;

 private:
  kernels::Arch before_ = kernels::arch_in_use();
};

}  // namespace tapehead
