#pragma once
// Which vector instructions the processor has, and the kernels compiled for them.

#include <string_view>

#include <tapehead/ops/kernels/simd/kernel_set.h>

namespace tapehead::kernels {

// What the library has vector code for; each level has the instructions of those before.
enum class Arch { baseline, avx2, avx512 };

std::string_view name_of(Arch arch);
bool processor_has(Arch arch);

// The level in use: the highest that the processor has, or the one named by the environment variable
// TAPEHEAD_ARCH. Throws DomainError when that names none, or one that the processor does not have.
Arch arch_in_use();
void use_arch(
    Arch arch);  // for tests and measurements; throws DomainError when the processor does not have it

// The level that `name` stands for. Throws DomainError as above.
Arch arch_named(std::string_view name);

// The level that OpenBLAS kernels of this name (openblas_get_corename) are written for.
Arch arch_of_blas_core(std::string_view core);

template <class T>
const VectorKernels<T>& vector_kernels();

}  // namespace tapehead::kernels
