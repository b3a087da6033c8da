#!/usr/bin/env bash
# tapehead check: what it prints, where, and how it exits.  check_command_test.sh COMMAND DATA
# DATA is tests/data. Dumps here are made by the command itself (--probe) or by printf: no Python is needed.
set -uo pipefail
# shellcheck source=tests/support/failures.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/failures.sh"
command=$(realpath -- "$1")
data=$(realpath -- "$2")/golden
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cd "$work" || exit 1

code=0
run() {
  code=0
  "$command" check "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
}
# exits CODE ARGUMENT...
exits() {
  local wanted=$1
  shift
  run "$@"
  ((code == wanted)) || fail "exit code $code, not $wanted, of: $*" "$(head -c 1000 "$work/err" "$work/out")"
}
prints() { grep -qF -e "$1" "$work/out" || fail "'$1' was not printed" "$(head -c 2000 "$work/out")"; }
# refuses TEXT ARGUMENT...: exit code 2, one line on standard error that holds TEXT, none on standard output.
refuses() {
  local text=$1
  shift
  exits 2 "$@"
  [[ $(grep -cv -e '--help' "$work/err") == 1 ]] || fail "not one line from: $*" "$(cat "$work/err")"
  grep -qF -e "$text" "$work/err" || fail "no '$text' in the message of: $*" "$(cat "$work/err")"
  [[ ! -s "$work/out" ]] || fail "a refusal on standard output of: $*" "$(cat "$work/out")"
}

# u64 NUMBER: eight bytes, the lowest first.
u64() {
  local n=$1 i
  for ((i = 0; i < 8; ++i)); do
    printf "\\x$(printf %02x $((n & 255)))"
    n=$((n >> 8))
  done
}
# safetensors HEADER BYTES: a file whose data are so many zero bytes.
safetensors() {
  u64 "${#1}"
  printf '%s' "$1"
  head -c "$2" /dev/zero
}
# tensor NAME DTYPE SHAPE BEGIN END
tensor() { printf '"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%s,%s]}' "$@"; }

# ---- Help

exits 0 --help
prints 'Examples:'
prints 'from safetensors.torch import save_file'
prints '--window-left'
refuses dumps

# ---- Dumps that agree, and one that does not

for name in sdpa_rect sdpa_gqa_causal sdpa_sliding_window sdpa_alibi mha_self mha_cross_widths paths_self; do
  exits 0 "$data/$name.safetensors"
  prints "$name.safetensors: agrees"
  prints 'assumed: '
  [[ ! -s "$work/err" ]] || fail "$name writes to standard error" "$(cat "$work/err")"
done
exits 1 "$data/sdpa_rect.safetensors" --scale 1 # not what it was computed with
exits 1 "$data/sdpa_softcap.safetensors" --softcap none
exits 0 "$data/sdpa_scale.safetensors" --causal none --computed-in f64

# ---- JSON: one line a dump, the worst exit code

exits 2 --json "$data"/{sdpa_rect,additive_attention,sdpa_gqa}.safetensors
[[ $(wc -l <"$work/out") == 3 ]] || fail 'not three lines of JSON' "$(cat "$work/out")"
[[ $(grep -c '"verdict":"agrees"' "$work/out") == 2 ]] || fail 'not two that agree'
prints '"verdict":"unusable"'
[[ $(wc -l <"$work/err") == 1 ]] || fail 'not one diagnostic' "$(cat "$work/err")"
exits 1 --json "$data/sdpa_rect.safetensors" --scale 1
prints '{"schema":1,"file":'

# ---- What is refused

refuses missing.safetensors missing.safetensors
for name in additive_attention encoder_layer_pre_gelu decoder_layer_pre training_run; do
  refuses "$name" "$data/$name.safetensors"
done
refuses 'setting scale: expected a finite number' "$data/sdpa_rect.safetensors" --scale nan
refuses 'setting window_left' "$data/sdpa_rect.safetensors" --window-left=-1
refuses 'setting layout' "$data/sdpa_rect.safetensors" --layout LBHD
refuses 'setting heads: expected 3' "$data/sdpa_batched_heads.safetensors" --heads 2
refuses 'NAME=TENSOR' "$data/sdpa_rect.safetensors" --name output
refuses 'no such tensor' "$data/sdpa_rect.safetensors" --name output=ctx
refuses nosuch --nosuch "$data/sdpa_rect.safetensors"
printf 'rubbish' >rubbish.safetensors
refuses 'rubbish.safetensors' rubbish.safetensors
u64 18446744073709551615 >huge.safetensors
refuses 'huge.safetensors: claims a header' huge.safetensors
safetensors '{'"$(tensor q F32 '1,1,2,2' 0 16)"'}' 16 >only_q.safetensors
refuses 'nothing to judge' only_q.safetensors
safetensors '{'"$(tensor out F32 '1,1,2,2' 0 16)"'}' 16 >only_out.safetensors
refuses 'no query' only_out.safetensors
q=$(tensor q F32 '1,3,2,2' 0 48) k=$(tensor k F32 '1,2,2,2' 48 80) v=$(tensor v F32 '1,2,2,2' 80 112)
safetensors "{$q,$k,$v,$(tensor out F32 '1,3,2,2' 112 160)}" 160 >heads.safetensors
refuses 'multiple of the 2 key heads' heads.safetensors --layout BHLD
q=$(tensor q F32 '1,1,2,2' 0 16) k=$(tensor k F32 '1,1,2,2' 16 32) v=$(tensor v F32 '1,1,2,2' 32 48)
out=$(tensor out F32 '1,1,2,2' 48 64)
safetensors "{$q,$k,$v,$out,$(tensor mask BOOL '3,2' 64 70)}" 70 >mask.safetensors
refuses 'tensor mask: expected a shape that broadcasts to (B, H, L, S) (1, 1, 2, 2), and is' mask.safetensors
safetensors "{$(tensor other F32 4 0 16),$k,$v,$out,$(tensor q F8_E4M3 '1,1,2,2' 64 68)}" 68 >type.safetensors
refuses 'F8_E4M3' type.safetensors
mkdir folder
refuses 'no .npy file' folder
printf '\x93NUMPY\x01\x00' >folder/q.npy
refuses 'folder/q.npy' folder

# A spec beside tensors, and as a file of its own
spec() {
  printf '%s' "$1" >spec.json
  refuses "$2" "$data/sdpa_rect.safetensors" --spec spec.json
}
spec rubbish 'spec.json: is not JSON'
spec '[]' 'spec.json: expected one JSON object'
spec '{"scale": []}' 'spec.json'
spec '{"scale": "NaN"}' 'spec.json: setting scale'
spec '{"casual": "top-left"}' 'spec.json: unknown setting "casual"'
spec "$(printf '[%.0s' {1..50000})" 'spec.json'
refuses 'missing.json' "$data/sdpa_rect.safetensors" --spec missing.json
printf '{"causal": "none", "scale": 1}' >spec.json
exits 1 "$data/sdpa_rect.safetensors" --spec spec.json
exits 0 "$data/sdpa_rect.safetensors" --spec spec.json --scale 0.5773502691896258 # a flag goes first

# ---- Two dumps

exits 0 "$data/sdpa_causal_square.safetensors" --against "$data/sdpa_causal_square.safetensors"
prints 'repeatable'
exits 0 "$data/sdpa_scale.safetensors" --against "$data/sdpa_one_key.safetensors"
prints 'two calls: '
refuses 'missing' "$data/sdpa_scale.safetensors" --against missing

# ---- Probes

exits 0 "$data/sdpa_rect.safetensors" --probe probe.safetensors
grep -q 'no probe is needed' "$work/err" || fail 'a probe for what agrees' "$(cat "$work/err")"
[[ ! -e probe.safetensors ]] || fail 'a probe was written for what agrees'
refuses 'one dump' "$data/sdpa_rect.safetensors" "$data/sdpa_scale.safetensors" --probe probe.safetensors

# A full standard output is an error.
if [[ -w /dev/full ]]; then
  code=0
  "$command" check --json "$data/sdpa_rect.safetensors" >/dev/full 2>"$work/err" || code=$?
  ((code == 2)) || fail "exit code $code with a full standard output"
fi

((failures == 0)) || exit 1
