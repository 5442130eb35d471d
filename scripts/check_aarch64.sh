#!/usr/bin/env bash
# Checks that what is not written for x86-64 or a card also compiles for aarch64. Packages that are headers
# alone, or whose headers do not depend on the architecture, are lent from this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lent=build/aarch64/include
mkdir -p "$lent"
for header in nlohmann sentencepiece_processor.h; do
  ln -sfn "/usr/include/$header" "$lent/$header"
done
mkdir -p "$lent/openssl"
ln -sfn /usr/include/xxhash.h "$lent/xxhash.h"
ln -sfn /usr/include/openssl/*.h /usr/include/x86_64-linux-gnu/openssl/*.h "$lent/openssl/"
git ls-files -z 'kernels/*.cpp' 'loaders/*.cpp' 'models/*.cpp' 'engine/*.cpp' |
  grep -zvE '_avx(2|512|512_vnni)\.cpp$|^kernels/cuda/' |
  xargs -0 -n 1 -P 2 aarch64-linux-gnu-g++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror \
    -ffp-contract=off -I. -isystem "$lent"
