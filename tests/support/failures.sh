# shellcheck shell=bash
# What the tests of the command share. Sourced, not run.

failures=0

# fail WHAT [DETAIL...]: goes on, so that one run shows all.
fail() {
  printf 'FAILED: %s\n' "$1"
  shift
  [[ $# == 0 ]] || printf '  %.2000s\n' "$@"
  failures=$((failures + 1))
}
