#!/usr/bin/env bash
# tapehead contract on our own attention and on the example kernels: which claims fail, which mistake is named,
# how it exits.  contract_test.sh COMMAND KERNELS ROOT CXX
set -uo pipefail
# shellcheck source=tests/support/failures.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/failures.sh"
command=$(realpath -- "$1")
kernels=$(realpath -- "$2")
root=$(realpath -- "$3")
compiler=$4
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cd "$work" || exit 1

# exits CODE ARGUMENT...: leaves what was printed in out and err.
exits() {
  local expected=$1 code=0
  shift
  "$command" contract "$@" >out 2>err </dev/null || code=$?
  ((code == expected)) || fail "exit code $code, not $expected, of: contract $*" "$(cat err out)"
}

# refuses TEXT ARGUMENT...: exit code 2 and one line that holds TEXT; a line that points to --help may follow.
refuses() {
  local text=$1
  shift
  exits 2 "$@"
  [[ "$(sed -n 1p err)" == *"$text"* ]] || fail "no '$text' in the message of: contract $*" "$(cat err)"
  ! sed 1d err | grep -qv -e '--help' || fail "more than one line from: contract $*" "$(cat err)"
  [[ ! -s out ]] || fail "a refusal on standard output of: contract $*" "$(cat out)"
}

# example KERNEL MISTAKE CLAIM...: exactly these claims fail, and the diagnosis of the first names the mistake.
example() {
  local kernel=$1 mistake=$2 failed
  shift 2
  exits 1 --library "$kernels/$kernel.so"
  failed=$(awk '/ (FAILS|CRASHES|HANGS|REFUSES) /{print $1}' out | xargs)
  [[ "$failed" == "$*" ]] || fail "$kernel: these claims fail: $failed" "expected: $*"
  [[ "$(grep -m 1 ' diagnosis: ' out)" == *" $mistake: "* ]] || fail "$kernel: not named $mistake" "$(cat out)"
}

# ---- What it says of itself

exits 0 --help
grep -qE '^ +tapehead contract --library' out || fail 'no example in the help' "$(cat out)"
exits 0 --list
(($(wc -l <out) == 35)) || fail 'not a line a claim' "$(cat out)"

# ---- Subjects

exits 0 --claim hand-trace --claim row-sums
grep -q '^Claims on built-in, composed of ops$' out || fail 'composed attention is not tried' "$(cat out)"
grep -q '^Claims on built-in, fused kernel$' out || fail 'the fused kernel is not tried' "$(cat out)"
exits 0 --claim hand-trace --json
(($(wc -l <out) == 1)) || fail 'not one line of JSON' "$(cat out)"
grep -q '^{"schema":1,"subjects":\[{.*"failed":0}$' out || fail 'other JSON' "$(cat out)"

exits 0 --library "$kernels/right.so"
grep -q '^32 claims hold, 0 fail, 3 were not tried\.$' out || fail 'the right kernel' "$(cat out)"
example no_scale scale-omitted formulas hand-trace scale variance entropy tile-edges
example causal_corner causal-alignment-swapped formulas visible-keys empty-rows decoding
example mask_after_softmax mask-after-softmax formulas row-sums hand-trace forbidden-keys prefixes first-row \
  visible-keys hidden-nan empty-rows decoding tile-edges
example no_rescale online-softmax-state/no-rescale key-order tile-edges
example tiled_heads gqa-tile formulas grouped-heads
example no_delta grad-softmax-jacobian/no-delta formulas differences shared-input row-constant tile-edges

# A failing call is a dump of which `tapehead check` says the same.
exits 1 --library "$kernels/no_scale.so" --claim formulas --out kept
code=0
"$command" check kept/formulas-f32.safetensors >out 2>err || code=$?
((code == 1)) || fail "exit code $code of check" "$(cat err)"
grep -q 'scale-omitted' out || fail 'check names another mistake' "$(cat out)"

# ---- What cannot be used

refuses nosuch.so --library nosuch.so
printf 'not a library' >text.so
refuses text.so --library text.so
refuses nosuch --claim nosuch
refuses --type --type f16
for limit in 0 -1 nan soon; do refuses --time-limit --time-limit "$limit"; done

# ---- The header is plain C, of 1999, and C++

for language in 'c -std=c99' 'c++ -std=c++98' 'c++ -std=c++20'; do
  read -ra words <<<"$language"
  "$compiler" -x "${words[@]}" -Wall -Wextra -Wpedantic -Werror -fsyntax-only \
    "$root/tools/contract/tapehead_kernel.h" 2>err || fail "the header as $language" "$(cat err)"
done
for kernel in "$root"/examples/kernels/*.c*; do
  (($(wc -l <"$kernel") < 100)) || fail "$kernel has a hundred lines or more"
done

((failures == 0)) && echo "all as it should be"
exit $((failures > 0))
