#!/usr/bin/env bash
# Every public function of ops/*.h has a row in the op table, and every row such a function.
# ops_have_rows_test.sh ROOT PROGRAM, the program with the table.
set -euo pipefail
root=$1 program=$2

# What is no op: no Var comes out of it.
no_ops='
positive   a mask of plain values, which the rules of relu and gelu ask for
sum_over   plain values, for fit and sum_to; sum is the op
round_to   plain values; rounding is a step function, without a derivative to pass on
'

# Names before a parenthesis in the declarations that begin in the first column, as clang-format has them: members and
# what is in detail namespaces are left out, and operators, which forward to functions of names.
functions() {
  awk '/^namespace ([a-z_:]*::)?detail / {hidden = 1}
       /^}  \/\/ namespace/ {hidden = 0}
       hidden || /^(\/\/|#|template|requires|namespace|using|static_assert)/ {next}
       match($0, /^([A-Za-z_][A-Za-z0-9_:<>, *&]*[ *&>])?[a-z_][a-z0-9_]*\(/) {
         name = substr($0, 1, RLENGTH - 1)
         sub(/.*[^a-z0-9_]/, "", name)
         print name
       }' "$root"/ops/*.h | sort -u
}

listed=$(awk 'NF {print $1}' <<<"$no_ops" | sort -u)
public=$(comm -23 <(functions) <(echo "$listed"))
rows=$("$program" --gtest_filter=OpTable.Counts | sed -n 's/^ops of the table: //p' | tr ' ' '\n' | sort -u)
status=0
complain() {  # complain WHAT NAMES
  [[ -z "$2" ]] || { printf '%s: %s\n' "$1" "$(paste -sd ' ' <<<"$2")"; status=1; }
}
complain "no row in tests/ops/rows" "$(comm -23 <(echo "$public") <(echo "$rows"))"
complain "a row of no function of ops/*.h" "$(comm -13 <(echo "$public") <(echo "$rows"))"
complain "listed as no op, but there is no such function" "$(comm -13 <(functions) <(echo "$listed"))"
[[ -n "$public" ]] || { echo "no function was found in ops/*.h"; status=1; }
exit "$status"
