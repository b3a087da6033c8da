#!/usr/bin/env bash
# Runs a test program with kernels of one level, or under an old processor.  at_level.sh LEVEL PROGRAM [ARGUMENT...]
# LEVEL is baseline, avx2, avx512, or core2: the baseline under qemu, on a processor of 2006. Exits with 77 where this
# machine does not have it.
set -euo pipefail
level=$1
shift
has() { grep -m1 '^flags' /proc/cpuinfo | grep -qw -- "$1"; }
case "$level" in
  baseline) ;;
  avx2) has avx2 || exit 77 ;;
  avx512) has avx512vl || exit 77 ;;
  core2)
    [[ "$(uname -m)" == x86_64 ]] && command -v qemu-x86_64 >/dev/null || exit 77
    exec qemu-x86_64 -cpu core2duo "$@"
    ;;
  *) exit 2 ;;
esac
TAPEHEAD_ARCH=$level exec "$@"
