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

compile() {
  aarch64-linux-gnu-g++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -ffp-contract=off \
    -I. -isystem build/aarch64/include "$@"
}
# Several files at once, which share what they include; one by one where names collide.
compile_together() {
  printf '#include "%s"\n' "$@" | compile -x c++ - 2>/dev/null ||
    for file in "$@"; do compile "$file"; done
}
export -f compile compile_together
git ls-files 'kernels/*.cpp' 'loaders/*.cpp' 'models/*.cpp' 'engine/*.cpp' |
  grep -vE '_avx(2|512|512_vnni)\.cpp$|^kernels/cuda/|/mpi_comm\.cpp$' |
  xargs -n 16 -P 2 bash -euc 'compile_together "$@"' compile_together
