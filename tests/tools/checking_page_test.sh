#!/usr/bin/env bash
# The PyTorch program of docs/checking.md writes a dump that agrees, and one that does not when it is made wrong. Exits
# with 77 where Python has not what is needed: TAPEHEAD_PYTHON, else the one of scripts/fetch-minilm, else python3.
# checking_page_test.sh COMMAND PAGE
set -euo pipefail
command=$(realpath -- "$1")
page=$(realpath -- "$2")
fetched=$(dirname -- "$page")/../build/minilm/venv/bin/python
python=${TAPEHEAD_PYTHON:-python3}
if [[ -z ${TAPEHEAD_PYTHON:-} && -x $fetched ]]; then python=$fetched; fi
if ! "$python" -c 'import safetensors.torch, torch' 2>/dev/null; then
  echo "SKIPPED: $python cannot import torch, safetensors; TAPEHEAD_PYTHON may name one that can"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cd "$work"
awk '/^```$/ {inside = 0} inside {print} /^```python checking_dump.py$/ {inside = 1}' "$page" >dump.py
"$python" dump.py
"$command" check dump.safetensors
sed 's/attention(q, k, v)/attention(q * 8**-0.5, k, v)/' dump.py >wrong.py  # scaled twice
! cmp -s dump.py wrong.py
"$python" wrong.py
code=0
"$command" check dump.safetensors >report || code=$?
cat report
((code == 1))
grep -q scale-one-over-d report
