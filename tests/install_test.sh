#!/usr/bin/env bash
# Installs the build, and builds and runs a program of somebody else against it.
# install_test.sh CMAKE BUILD ROOT [CMAKE-OPTION...]
set -euo pipefail
cmake=$1 build=$2 root=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/prefix" >"$work/log"
mkdir "$work/mine"
inspected=OFF
[[ ! -e "$work/prefix/include/tapehead/inspect" ]] || inspected=ON
cp "$root/examples/smallest.cpp" "$work/mine/main.cpp"
cat >"$work/mine/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(mine CXX)
find_package(tapehead REQUIRED)
add_executable(mine main.cpp)
target_link_libraries(mine PRIVATE tapehead::tapehead)
if(INSPECTED)
  find_package(tapehead REQUIRED COMPONENTS inspect)
  add_executable(page page.cpp)
  target_link_libraries(page PRIVATE tapehead::inspect)
endif()
END
cat >"$work/mine/page.cpp" <<'END'
#include <tapehead/inspect/html.h>
#include <tapehead/inspect/inspect.h>
#include <tapehead/inspect/text.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/reduction.h>

#include <iostream>

int main() {
  using namespace tapehead;
  Tape<double> tape;
  sum(exp(tape.input(Array<double>::ones({3}), "x")));
  const TapeTable table = inspect(tape);
  write_table(std::cout, table);
  write_html(std::cout, table);
}
END
"$cmake" -S "$work/mine" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DINSPECTED=$inspected "$@" >>"$work/log" 2>&1 &&
  "$cmake" --build "$work/build" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/build/mine" >"$work/printed"
grep -q 'gradient of X by query' "$work/printed"
if [[ $inspected == ON ]]; then
  "$work/build/page" >"$work/printed"
  grep -q '%1 *exp' "$work/printed"
  grep -q '</html>' "$work/printed"
  printf '#include <tapehead/tapehead_kernel.h>\nint main(void) { return 0; }\n' >"$work/kernel.c"
  cc -std=c99 -Wall -Werror -I"$work/prefix/include" "$work/kernel.c" -o "$work/kernel"
fi
if find "$work/prefix" -path '*kernels*' | grep .; then
  echo "a kernel's header is installed"
  exit 1
fi
