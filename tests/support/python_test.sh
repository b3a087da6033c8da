#!/usr/bin/env bash
# Runs a test written in Python.  python_test.sh numpy|torch SCRIPT [ARGUMENT...]
# SCRIPT gets the arguments and an empty folder. Exits 77, which ctest shows as skipped, where Python has not what is
# needed: TAPEHEAD_PYTHON, else the one of scripts/fetch-minilm, else python3.
set -euo pipefail
part=$1
shift
fetched=$(dirname "$0")/../../build/minilm/venv/bin/python  # what scripts/fetch-minilm made
python=${TAPEHEAD_PYTHON:-python3}
if [[ -z ${TAPEHEAD_PYTHON:-} && -x $fetched ]]; then python=$fetched; fi
modules=numpy
if [[ $part == torch ]]; then modules='torch, safetensors.torch'; fi
if ! "$python" -c "import $modules" 2>/dev/null; then
  echo "SKIPPED: $python cannot import $modules; TAPEHEAD_PYTHON may name one that can"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
"$python" "$@" "$work"
