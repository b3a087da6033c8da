#!/usr/bin/env bash
# The page in Chromium.  page_test.sh PAGE_CASES, the program that writes pages; exits 77 without a browser.
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")
cases=$(realpath -- "$1")

# found NAME...: the first of the commands that there is.
found() {
  { type -P "$@" || true; } | head -n 1 | grep . || { echo "not here: $*" >&2; exit 77; }
}
python=$(found python3)
driver=$(found chromedriver)
browser=$(found chromium chromium-browser google-chrome)

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
"$cases" "$work"
PYTHONDONTWRITEBYTECODE=1 "$python" "$here/page_test.py" "$work" "$driver" "$browser"
