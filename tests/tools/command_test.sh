#!/usr/bin/env bash
# The command line of tapehead: what it says, where it says it and how it exits.  command_test.sh COMMAND
set -uo pipefail
# shellcheck source=tests/support/failures.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/failures.sh"
command=$(realpath -- "$1")
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
mkdir "$work/here"
cd "$work/here" || exit 1
printf 'just a file\n' >"$work/file"
printf 'fourscore and seven years ago %.0s' {1..40} >"$work/text"
quick=(--steps 2 --batch 2 --width 8 --layers 1 --hidden 0)

# Runs the command; leaves its exit code in $code, its output in $work/out and $work/err.
code=0
run() {
  code=0
  "$command" "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
}

# succeeds ARGUMENT...
succeeds() {
  run "$@"
  ((code == 0)) || fail "exit code $code of: $*" "$(cat "$work/err")"
}

# refuses TEXT ARGUMENT...: exit code 2, and the first line on standard error holds TEXT; nothing on standard output.
# A line that points to --help may follow.
refuses() {
  local text=$1 first
  shift
  run "$@"
  ((code == 2)) || fail "exit code $code, not 2, of: $*" "$(cat "$work/err")"
  first=$(sed -n 1p "$work/err")
  [[ "$first" == *"$text"* ]] || fail "no '$text' in the message of: $*" "$first"
  ! sed 1d "$work/err" | grep -qv -e '--help' || fail "more than one line from: $*" "$(cat "$work/err")"
  [[ ! -s "$work/out" ]] || fail "a refusal on standard output of: $*" "$(cat "$work/out")"
}

# prints PATTERN: a line of standard output matches.
prints() { grep -qE -e "$1" "$work/out" || fail "nothing like '$1' was printed" "$(head -c 2000 "$work/out")"; }

# ---- What it says of itself

for arguments in --help -h 'train --help' 'train -h'; do
  read -ra words <<<"$arguments"
  succeeds "${words[@]}"
  prints '^Examples?:'
  prints '^ +tapehead train '
  [[ ! -s "$work/err" ]] || fail "$arguments writes to standard error"
done
prints '--steps'
for arguments in 'cache --help' 'cache -h'; do
  read -ra words <<<"$arguments"
  succeeds "${words[@]}"
  prints '^Examples?:'
  prints '^ +tapehead cache --layers'
  [[ ! -s "$work/err" ]] || fail "$arguments writes to standard error"
done
succeeds --version
prints '^tapehead [0-9]+\.[0-9]+\.[0-9]+$'

# ---- Arguments that cannot be used

refuses command
refuses nosuch nosuch
refuses --nosuch --nosuch
refuses task train
refuses sort train sort
refuses --nosuch train recall --nosuch
refuses extra train recall extra
refuses --text train lm
refuses "$work/missing" train lm --text "$work/missing"
refuses --text train lm --text "$work"
refuses --text train recall --text "$work/text"
refuses --context train recall --context 8
refuses --cross train recall --cross
refuses --cross train lm --cross --text "$work/text"
for option in steps batch width heads layers threads; do
  refuses "--$option" train recall "--$option" 0
  refuses "--$option" train recall "--$option" -3
  refuses "--$option" train recall "--$option" many
  refuses "--$option" train recall "--$option" 1.5
  refuses "--$option" train recall "--$option" 99999999999999999999
  refuses "--$option" train recall "--$option"
done
refuses --hidden train recall --hidden -1
refuses --context train lm --text "$work/text" --context 1
for value in 0 -1 nan inf fast; do refuses --rate train recall "${quick[@]}" --rate "$value"; done
for value in -1 nan inf much; do refuses --decay train recall "${quick[@]}" --decay "$value"; done
for value in -1 1.5 first 18446744073709551616; do refuses --seed train recall "${quick[@]}" --seed "$value"; done
refuses 'heads' train recall "${quick[@]}" --heads 3
refuses "$work/text" train lm --text "$work/text" --context 2000
printf 'not \xff UTF-8' >"$work/bytes"
refuses 'byte 4' train lm --text "$work/bytes"

model=(--layers 80 --kv-heads 64 --length 32768 --width 128 --bytes 2)
for ((i = 0; i < ${#model[@]}; i += 2)); do
  option=${model[i]}
  others=("${model[@]:0:i}" "${model[@]:i+2}")
  refuses "$option" cache "${others[@]}"
  for value in 0 -3 many 1.5 99999999999999999999; do refuses "$option" cache "${others[@]}" "$option" "$value"; done
done
for option in --batch --value-width; do
  for value in 0 -3 many; do refuses "$option" cache "${model[@]}" "$option" "$value"; done
done
refuses '2^63' cache "${model[@]}" --batch 9223372036854775807
refuses extra cache "${model[@]}" extra
refuses train cache "${model[@]}" train recall
refuses cache train recall cache "${model[@]}"

# ---- What it prints

# of_cache HEADS LENGTH: what the command says of a cache of so many key/value heads and tokens.
of_cache() {
  succeeds cache --layers 80 --kv-heads "$1" --length "$2" --width 128 --bytes 2
  sed -n '1s/.*bytes, //p' "$work/out"
}
[[ "$(of_cache 64 32768)" == '80 GiB, 85.899 GB' ]] || fail "not 80 GiB" "$(of_cache 64 32768)"
[[ "$(of_cache 8 32768)" == '10 GiB, 10.737 GB' ]] || fail "not 10 GiB" "$(of_cache 8 32768)"
[[ "$(of_cache 64 4096)" == '10 GiB, 10.737 GB' ]] || fail "not 10 GiB" "$(of_cache 64 4096)"
[[ "$(of_cache 8 4096)" == '1.25 GiB, 1.342 GB' ]] || fail "not 1.25 GiB" "$(of_cache 8 4096)"
succeeds cache "${model[@]}" --batch 1
prints '^Key/value cache: 85,899,345,920 bytes, 80 GiB, 85\.899 GB$'
prints '2 x layers x kv-heads x length x width x bytes x batch'
for what in weights activations growth allocator; do prints "^ +$what "; done
succeeds cache "${model[@]}" --json
(($(wc -l <"$work/out") == 1)) || fail "not one line of JSON from cache" "$(cat "$work/out")"
prints '^\{"bytes":85899345920,.*\}$'

number='-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?'
for task in recall reverse 'reverse --cross' 'lm --context 8 --text ../text'; do
  read -ra words <<<"train $task"
  succeeds "${words[@]}" "${quick[@]}" --json
  (($(wc -l <"$work/out") == 1)) || fail "not one line of JSON from $task" "$(cat "$work/out")"
  prints '^\{.*\}$'
  prints "\"task\":\"${words[1]}\""
  prints '"steps":2[,}]'
  for key in seconds loss accuracy; do prints "\"$key\":${number}[,}]"; done
  succeeds "${words[@]}" "${quick[@]}"
  prints "^${words[1]}: .* % of [0-9]+ held-out answers right"
done

# Progress goes to standard error, and only there; at once on a terminal, which `script` gives it.
if type -P script timeout >/dev/null && script --version >/dev/null 2>&1; then
  TERM=xterm timeout 60 script -qec "'$command' train recall ${quick[*]} --json >'$work/out'" /dev/null \
    >"$work/err" </dev/null || fail "exit code $? under a terminal"
  grep -q 'step 2/2' "$work/err" || fail "no progress on a terminal" "$(cat "$work/err")"
  (($(wc -l <"$work/out") == 1)) || fail "progress of a terminal on standard output" "$(cat "$work/out")"
fi

# The same numbers again, and others with another seed.
numbers_of() { "$command" train recall "${quick[@]}" --json "$@" 2>/dev/null | sed 's/"seconds":[^,]*,//'; }
first=$(numbers_of --seed 7)
[[ "$first" == "$(numbers_of --seed 7 --threads 1)" ]] || fail "the same seed gives other numbers"
[[ "$first" != "$(numbers_of --seed 8)" ]] || fail "another seed gives the same numbers"

# ---- What it writes

[[ -z "$(ls -A .)" ]] || fail "files without --out" "$(ls -A .)"
succeeds train recall "${quick[@]}" --out runs/first --json
[[ "$(ls -A .)" == runs ]] || fail "files beside --out" "$(ls -A .)"
(shopt -s dotglob && [[ "$(cd runs/first && echo *)" == 'attention.svg log.jsonl loss.svg model.safetensors run.json' ]]) ||
  fail "not the five files of a run" "$(ls -A runs/first)"
(($(wc -l <runs/first/log.jsonl) == 2)) || fail "not a line a step" "$(cat runs/first/log.jsonl)"

# ---- What cannot be written

for out in "$work/file" "$work/file/below" /dev/null/below; do
  refuses "$out" train recall "${quick[@]}" --out "$out"
done

# fails_into FILE ARGUMENT...: an exit code that says so, one line of why, and neither an abort (134) nor a
# segmentation fault (139).
fails_into() {
  local file=$1
  shift
  code=0
  "$command" "$@" >"$file" 2>"$work/err" </dev/null || code=$?
  ((code > 0 && code < 128)) || fail "exit code $code of: $* >$file" "$(cat "$work/err")"
  [[ -s "$work/err" ]] || fail "no word of why: $* >$file"
}
if [[ -w /dev/full ]]; then
  fails_into /dev/full train recall "${quick[@]}"
  fails_into /dev/full train recall "${quick[@]}" --json
  fails_into /dev/full cache "${model[@]}"
  fails_into /dev/full --help
  fails_into /dev/full --version
fi

# A reader that has gone: killed by SIGPIPE (141), as is usual, or an error.
code=0
{ "$command" train recall "${quick[@]}" --json 2>"$work/err" || echo $? >"$work/code"; } | :
code=$(cat "$work/code" 2>/dev/null || echo 0)
((code == 141 || (code > 0 && code < 128))) || fail "exit code $code into a closed pipe" "$(cat "$work/err")"

((failures == 0)) && echo "all as it should be"
exit $((failures > 0))
