#!/usr/bin/env bash
# Layers written here are loaded by PyTorch's own modules and give the same output.
# pytorch_layers_files_test.sh PROGRAM, which is pytorch_layers_files. Exits 77, which ctest shows as skipped,
# where Python has not what is needed: TAPEHEAD_PYTHON, else the one of scripts/fetch-minilm, else python3.
set -euo pipefail
program=$1
fetched=$(dirname "$0")/../../build/minilm/venv/bin/python  # what scripts/fetch-minilm made
python=${TAPEHEAD_PYTHON:-python3}
if [[ -z ${TAPEHEAD_PYTHON:-} && -x $fetched ]]; then python=$fetched; fi
modules='torch, safetensors.torch'
if ! "$python" -c "import $modules" 2>/dev/null; then
  echo "SKIPPED: $python cannot import $modules; TAPEHEAD_PYTHON may name one that can"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
"$python" "$(dirname "$0")/pytorch_layers_files_test.py" "$program" "$work"
