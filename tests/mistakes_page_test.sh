#!/usr/bin/env bash
# docs/mistakes.md says what the table of mistakes says.  mistakes_page_test.sh ROOT
set -euo pipefail
exec "$1/scripts/mistakes-page" --check
