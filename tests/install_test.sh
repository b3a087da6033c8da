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
cp "$root/examples/smallest.cpp" "$work/mine/main.cpp"
cat >"$work/mine/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(mine CXX)
find_package(tapehead REQUIRED)
add_executable(mine main.cpp)
target_link_libraries(mine PRIVATE tapehead::tapehead)
END
"$cmake" -S "$work/mine" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" "$@" >>"$work/log" 2>&1 &&
  "$cmake" --build "$work/build" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/build/mine" >"$work/printed"
grep -q 'gradient of X by query' "$work/printed"
if find "$work/prefix" -path '*kernels*' | grep .; then
  echo "a kernel's header is installed"
  exit 1
fi
