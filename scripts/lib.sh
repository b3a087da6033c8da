# shellcheck shell=bash
# What the scripts of this folder share. Sourced, not run.

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." >/dev/null && pwd -P)"
script="${0##*/}"

say() { printf '%s: %s\n' "$script" "$*" >&2; }

# Unusable arguments or an unusable machine.
refuse() { say "$*"; exit 2; }

# installed PACKAGE: whether the Debian package is there.
installed() { [[ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null)" == ?i* ]]; }

on_terminal() { [[ -t 2 && "${TERM:-dumb}" != dumb ]]; }

# find_cmake: prints the path of a CMake of 3.25 or later; the system's own before what PATH holds.
find_cmake() {
  local candidate version
  for candidate in /usr/bin/cmake "$(command -v cmake || true)"; do
    [[ -x "$candidate" ]] || continue
    version="$("$candidate" --version 2>/dev/null | sed -n '1s/^[^0-9]*\([0-9.]*\).*/\1/p')"
    if [[ -n "$version" ]] && printf '%s\n' 3.25 "$version" | sort -V -C; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  return 1
}

# find_ninja: prints the path of a ninja that runs.
find_ninja() {
  local candidate
  for candidate in /usr/bin/ninja "$(command -v ninja || true)"; do
    if [[ -x "$candidate" ]] && "$candidate" --version >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  return 1
}

# Shows LABEL, the seconds gone and the last line of LOG: in place on a terminal, else as a line now and then.
watch_progress() {
  local label="$1" log="$2" begin=$SECONDS next=2 never line
  exec {never}<> <(:)
  while kill -0 $$ 2>/dev/null; do
    read -r -t 0.5 -u "$never" || true
    line="$(tail -n 1 -- "$log" 2>/dev/null | tr -d '\r\033')"
    line="$label, $((SECONDS - begin)) s  $line"
    if on_terminal; then
      printf '\r\033[K%s' "${line:0:78}" >&2
    elif ((SECONDS - begin >= next)); then
      say "${line:0:110}"
      next=$((SECONDS - begin + 10))
    fi
  done
}

watcher=
stop_watching() {
  [[ -n "$watcher" ]] || return 0
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  watcher=
  if on_terminal; then printf '\r\033[K' >&2; fi
}
trap stop_watching EXIT

# step LABEL LOG COMMAND...: runs COMMAND with its output in LOG. When it fails, shows the end of LOG and leaves
# with COMMAND's exit status.
step() {
  local label="$1" log="$2" begin=$SECONDS status=0
  shift 2
  mkdir -p -- "${log%/*}"
  : >"$log"
  watch_progress "$label" "$log" &
  watcher=$!
  "$@" </dev/null >>"$log" 2>&1 || status=$?
  stop_watching
  if ((status != 0)); then
    tail -n 40 -- "$log" >&2
    say "$label failed (exit status $status); everything it said is in $log"
    exit "$status"
  fi
  say "$label: $((SECONDS - begin)) s"
}

# configure NAME PRESET [OPTION...]: configures PRESET into build/NAME; starts afresh when that folder was made for
# a tree that has moved. Run from $root; sets $cmake.
configure() {
  local name="$1" preset="$2" ninja cache="build/$1/CMakeCache.txt" fresh=()
  shift 2
  cmake="$(find_cmake)" || refuse "CMake 3.25 or later is needed; neither /usr/bin nor PATH has one"
  ninja="$(find_ninja)" || refuse "ninja is needed; neither /usr/bin nor PATH has one that runs"
  if [[ -f "$cache" ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache"; then fresh=(--fresh); fi
  step "configuring $name" "$root/build/logs/configure-$name.log" \
    "$cmake" --preset "$preset" -B "$root/build/$name" "-DCMAKE_MAKE_PROGRAM=$ninja" ${fresh[@]+"${fresh[@]}"} "$@"
}

# build NAME [TARGET]: builds what configure prepared.
build() {
  step "building ${2:-$1}" "$root/build/logs/build-$1.log" \
    "$cmake" --build "$root/build/$1" ${2:+--target "$2"}
}
