#!/usr/bin/env bash
# Follows docs/adding-an-op.md to the letter: its blocks go into the files that they name, in a copy of the tree, and what
# comes out is built and checked.  adding_an_op_test.sh ROOT BUILD COMPILER FLAGS LIBRARIES OBJECT...
# FLAGS and LIBRARIES are lists in one argument, the libraries those of others; the objects are those of test_ops.
set -euo pipefail
root=$1 build=$2 compiler=$3
read -ra flags <<<"$4"
read -ra libraries <<<"$5"
shift 5
objects=("$@")
page=$root/docs/adding-an-op.md
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
fail() { echo "$1"; exit 1; }

tree=$work/include/tapehead
mkdir -p "$tree/tests/ops/rows"
cp -r "$root/ops" "$root/docs" "$root/scripts" "$root/tapehead.h" "$tree"
ln -s "$root/core" "$root/nn" "$tree"

# What stands under the fence ```cpp FILE.
block() { awk -v fence="\`\`\`cpp $1" '$0 == fence {on = 1; next} $0 == "```" {on = 0} on' "$page"; }
mapfile -t files < <(sed -n 's/^```cpp //p' "$page")
added=()
for file in "${files[@]}"; do
  case $file in
    examples/*) [[ "$(<"$root/$file")" == *"$(block "$file")"* ]] || fail "the page differs from $file" ;;
    tapehead.h)  # ahead of the first line that it sorts before
      awk -v line="$(block "$file")" '/^#include <tapehead\/ops\// && !done && line < $0 {print line; done = 1} {print}' \
        "$root/$file" >"$tree/$file"
      ;;
    *)
      [[ ! -e "$root/$file" ]] || fail "$file is there already"
      block "$file" >"$tree/$file"
      [[ $file != */* || $file == *.h ]] || added+=("$file")
      ;;
  esac
done
cmp -s "$root/tapehead.h" "$tree/tapehead.h" && fail "the page has no line for tapehead.h"
((${#added[@]} == 2)) || fail "the page does not add an op and a row, but: ${added[*]}"

# The two new files, strictly; then the op with all of the library and its row with all of the tests.
compile=("$compiler" -std=c++20 "${flags[@]}" -I"$work/include" -I"$root/tests" "-DTAPEHEAD_TEST_DATA=\"$root/tests/data\"")
strictly=(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror)
for file in "${added[@]}"; do
  objects+=("$work/$(basename "$(dirname "$file")").o")
  "${compile[@]}" "${strictly[@]}" -c "$tree/$file" -o "${objects[-1]}"
done
libraries=("$build/nn/libtapehead_nn.a" "$build/ops/libtapehead_ops.a" "$build/core/libtapehead_core.a" "${libraries[@]}")
"${compile[@]}" "${objects[@]}" "${libraries[@]}" -o "$work/test_ops"

# Step 3: without the row the op is missed, with it the suite is complete and the op right.
before=$(! "$root/tests/ops_have_rows_test.sh" "$tree" "$build/tests/test_ops" 2>&1) || fail "an op without a row is not missed"
grep -q '^no row.*: atan$' <<<"$before" || fail "$before"
"$root/tests/ops_have_rows_test.sh" "$tree" "$work/test_ops"
"$work/test_ops" --gtest_filter='*/atan:OpTable.*' >"$work/checks" || { cat "$work/checks"; exit 1; }
(($(grep -c 'OK.*/atan ' "$work/checks") >= 8)) || { cat "$work/checks"; fail "too few checks were made of atan"; }

# Step 2: the page of all ops gets it from the comment.
"$tree/scripts/ops-page"
for line in 'Var<T> atan(const Var<T>& x);' "$(block ops/arcs.h | sed -n 's|^// \(y = .*\)|\1|p')"; do
  grep -qF "$line" "$tree/docs/ops.md" || fail "not in docs/ops.md: $line"
done

# Step 4, and the section on gradients: a program against the new umbrella header.
{ block gradients.cpp; echo 'static_assert(sizeof(atan(Var<double>())) > 0);'; } >"$work/gradients.cpp"
"${compile[@]}" "${strictly[@]}" "$work/gradients.cpp" "$work/ops.o" "${libraries[@]}" -o "$work/gradients"
"$work/gradients" >"$work/printed"
diff "$work/printed" - <<'END'
at hidden [18, 32], at x [108, 256]
clipped [0.385351, 0.913424]
at x, clipped at hidden [29.4157,  69.726]
at x, turned round [-6, -8]
END
