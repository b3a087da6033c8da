#include <tapehead/core/errors.h>
#include <tapehead/ops/kernels/processor.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace tapehead::kernels {
namespace {

// A level and its kernels.
struct Level {
  Arch arch;
  const KernelSet* kernels;
};
constexpr Level levels[] = {{Arch::baseline, &baseline_kernels},
#if defined(__x86_64__)
                            {Arch::avx2, &avx2_kernels},
                            {Arch::avx512, &avx512_kernels}
#endif
};

Arch require(Arch arch) {
  if (processor_has(arch)) return arch;
  throw DomainError("TAPEHEAD_ARCH", "this processor does not have " + std::string(name_of(arch)));
}

const Level& level_of(Arch arch) {
  for (const Level& level : levels) {
    if (level.arch == require(arch)) return level;
  }
  return levels[0];
}

Arch arch_at_first() {
  if (const char* name = std::getenv("TAPEHEAD_ARCH")) return arch_named(name);
  for (const Arch arch : {Arch::avx512, Arch::avx2}) {
    if (processor_has(arch)) return arch;
  }
  return Arch::baseline;
}

constinit std::atomic<const Level*> in_use = nullptr;  // until the first use

const Level& level_in_use() {
  const Level* level = in_use.load(std::memory_order_acquire);
  if (!level) [[unlikely]] {
    level = &level_of(arch_at_first());
    in_use.store(level, std::memory_order_release);
  }
  return *level;
}

}  // namespace

std::string_view name_of(Arch arch) {
  return arch == Arch::avx512 ? "avx512" : arch == Arch::avx2 ? "avx2" : "baseline";
}

bool processor_has(Arch arch) {
  if (arch == Arch::baseline) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (arch == Arch::avx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

Arch arch_named(std::string_view name) {
  for (const Arch arch : {Arch::baseline, Arch::avx2, Arch::avx512}) {
    if (name == name_of(arch)) return require(arch);
  }
  throw DomainError("TAPEHEAD_ARCH", "\"" + std::string(name) + "\" is none of baseline, avx2 and avx512");
}

Arch arch_of_blas_core(std::string_view core) {
  for (const std::string_view name : {"SkylakeX", "Cooperlake", "SapphireRapids"}) {
    if (core == name) return Arch::avx512;
  }
  return core == "Haswell" || core == "Zen" ? Arch::avx2 : Arch::baseline;
}

Arch arch_in_use() { return level_in_use().arch; }
void use_arch(Arch arch) { in_use.store(&level_of(arch), std::memory_order_release); }

template <>
const VectorKernels<float>& vector_kernels() {
  return level_in_use().kernels->of_float;
}
template <>
const VectorKernels<double>& vector_kernels() {
  return level_in_use().kernels->of_double;
}

}  // namespace tapehead::kernels
