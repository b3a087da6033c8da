#!/usr/bin/env bash
# Dumps that Python wrote are read and judged.
# check_python_test.sh numpy|torch COMMAND. Exits 77, which ctest shows as skipped, where Python has not what
# is needed: TAPEHEAD_PYTHON, else the one of scripts/fetch-minilm, else python3.
set -euo pipefail
part=$1 command=$2
fetched=$(dirname "$0")/../../build/minilm/venv/bin/python # what scripts/fetch-minilm made
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
"$python" "$(dirname "$0")/check_python_test.py" "$part" "$command" "$work"
