#!/usr/bin/env bash
# The walls of the house: who may include whom, and what of xtensor may not be used.  structure_test.sh ROOT CXX INCLUDE
set -euo pipefail
root=$1 compiler=$2 include=$3
cd "$root"
status=0
forbid() {  # forbid WHAT PATTERN FOLDER...: no line of the folders may match
  local what=$1 pattern=$2
  shift 2
  local found
  if found=$(grep -rnE --include='*.h' --include='*.cpp' "$pattern" "$@"); then
    printf '%s:\n%s\n' "$what" "$found"
    status=1
  fi
}
forbid "core includes what is above it" '#include <(tapehead/)?(ops|nn|tools)/' core
forbid "ops includes what is above it" '#include <(tapehead/)?(nn|tools)/' ops
forbid "nn includes what is above it" '#include <tools/' nn
forbid "a kernel knows the tape" '#include <tapehead/core/(var|tape|record|gradient|paths)\.h>' ops/kernels
forbid "xtensor is included past core/xtensor.h first" '#include <xtensor' core/*.h ops/*.h nn/*.h ops/kernels/*.h \
  --exclude=xtensor.h
# Each of these gives wrong numbers or shapes silently, or may.
forbid "a lazy reducer in an expression, or an immediate one" 'keep_dims|evaluation_strategy' core ops nn tools
forbid "a product by xtensor-blas" 'linalg::dot' core ops nn tools
forbid "an array that a macro changes" 'XTENSOR_USE_XSIMD' core ops nn tools
forbid "arithmetic that is not IEEE" 'ffast-math|march=native' core ops nn tools

# Public headers pull in no array library, no BLAS, no JSON: what a user's file is compiled with.
if "$compiler" -std=c++20 -I"$include" -M -x c++ tapehead.h | grep -E '/(xtensor|xtl|xsimd|nlohmann|CLI|fmt)/|cblas\.h'; then
  echo "a public header includes a library that users should not pay for"
  status=1
fi
exit "$status"
