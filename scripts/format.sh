#!/usr/bin/env bash
# Formats every source file; with --check changes nothing and fails where something would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=(-i)
if [[ "${1:-}" == --check ]]; then mode=(--dry-run --Werror); fi
git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 -n 50 clang-format "${mode[@]}"
