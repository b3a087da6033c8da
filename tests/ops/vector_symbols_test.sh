#!/usr/bin/env bash
# An object compiled for newer processors must hold no function that the linker may take for all: a weak copy
# of an inline function would run on processors that do not know its instructions. A weak function is harmless
# when its name says which level it is for.  vector_symbols_test.sh OBJECT...
set -euo pipefail
shared_with_all() {  # shared_with_all OBJECT TAG: weak symbols whose names lack the tag
  nm -C "$1" | grep -E ' [Wu] ' | grep -vF "$2"
}
status=0 seen=0
for object in "$@"; do
  case $object in
    */simd/avx2.*) tag='xsimd::fma3<xsimd::avx2>' ;;
    */simd/avx512.*) tag='xsimd::avx512bw' ;;
    *) continue ;;
  esac
  seen=$((seen + 1))
  if weak=$(shared_with_all "$object" "$tag"); then
    printf '%s holds weak symbols:\n%s\n' "$object" "$weak"
    status=1
  fi
done
if [ "$seen" -ne 2 ]; then
  echo "$seen objects of simd/ for newer processors were given, not 2"
  status=1
fi
# The check itself sees one.
trial=$(mktemp -d)
trap 'rm -r "$trial"' EXIT
echo 'inline int f() { return 1; } int (*g)() = f;' > "$trial/weak.cpp"
"${CXX:-c++}" -c "$trial/weak.cpp" -o "$trial/weak.o"
if ! shared_with_all "$trial/weak.o" 'xsimd::avx512bw' > /dev/null; then
  echo "a weak function is not seen"
  status=1
fi
exit "$status"
