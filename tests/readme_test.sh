#!/usr/bin/env bash
# The README shows examples/smallest.cpp and what it prints, word for word.  readme_test.sh ROOT PROGRAM
set -euo pipefail
block() { awk -v fence="$1" '$0 == "```" fence {on = 1; next} $0 == "```" {on = 0} on' "$root/README.md"; }
root=$1
diff <(block cpp) "$root/examples/smallest.cpp" || { echo "README.md differs from examples/smallest.cpp"; exit 1; }
diff <(block text) <("$2") || { echo "README.md differs from what the example prints"; exit 1; }
