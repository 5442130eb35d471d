#!/usr/bin/env bash
# clang-tidy on the files that differ from a commit (main by default). Needs a configured build/debug,
# where each file has a command of its own; of its warnings some are options of GCC alone.
# Usage: scripts/lint.sh [COMMIT]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

git diff -z --name-only --diff-filter=d "${1:-main}" -- '*.cpp' |
  xargs -0 -r clang-tidy --quiet -p build/debug --extra-arg=-Wno-unknown-warning-option \
    --checks='bugprone-*,performance-*,-bugprone-easily-swappable-parameters,-bugprone-narrowing-conversions'
