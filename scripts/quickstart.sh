#!/usr/bin/env bash
# From a fresh Debian 12 or Ubuntu 24.04 to an answer: installs packages, builds, fetches
# SmolLM2-135M-Instruct (98 MB) and asks it. Only the answer goes to stdout.
# Usage: scripts/quickstart.sh [PROMPT]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/common.sh

prompt="${1:-What is the capital of France?}"

packages=("${build_packages[@]}" "${model_packages[@]}")
cat >&2 <<TEXT
minfer quickstart: installs what is missing of
  ${packages[*]}
builds in build/release, and fetches SmolLM2-135M-Instruct into
  ${XDG_CACHE_HOME:-$HOME/.cache}/minfer/models
TEXT
install_packages "${packages[@]}"
if [[ ! -f build/release/build.ninja ]]; then configure_release OFF >&2; fi
cmake --build build/release --target minfer_cli minfer_docs >&2  # all that an install needs
scripts/get_model.sh smollm2
build/release/tools/minfer generate -m smollm2 --chat -n 256 --temp 0 -p "$prompt" </dev/null
