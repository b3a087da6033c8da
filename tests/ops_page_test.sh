#!/usr/bin/env bash
# docs/ops.md says what the comments above the ops say.  ops_page_test.sh ROOT
set -euo pipefail
exec "$1/scripts/ops-page" --check
