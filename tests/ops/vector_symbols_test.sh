#!/usr/bin/env bash
# An object compiled for newer processors must hold no function that the linker may take for all: a weak copy of an
# inline function would run on processors that do not know its instructions.  vector_symbols_test.sh OBJECT...
set -euo pipefail
status=0 seen=0
for object in "$@"; do
  case $object in */simd/*) ;; *) continue ;; esac
  seen=$((seen + 1))
  if weak=$(nm -C "$object" | grep -E ' [Wu] '); then
    printf '%s holds weak symbols:\n%s\n' "$object" "$weak"
    status=1
  fi
done
if [ "$seen" -lt 3 ]; then
  echo "only $seen objects of simd/ were given"
  status=1
fi
# The check itself sees one.
trap 'rm -f "$trial".*' EXIT
trial=$(mktemp -u)
echo 'inline int f() { return 1; } int (*g)() = f;' > "$trial.cpp"
"${CXX:-c++}" -c "$trial.cpp" -o "$trial.o"
nm -C "$trial.o" | grep -qE ' [Wu] ' || { echo "a weak function is not seen"; status=1; }
exit "$status"
