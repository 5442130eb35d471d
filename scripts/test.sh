#!/usr/bin/env bash
# Installs what is missing, builds everything, fetches the model that tests use, runs every test.
# Usage: scripts/test.sh [arguments of ctest]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/common.sh

install_packages "${build_packages[@]}" "${model_packages[@]}" "${test_packages[@]}" \
  "${mpi_packages[@]}"
configure_release ON
cmake --build build/release
scripts/get_model.sh smollm2
ctest --preset release -j2 "$@"
