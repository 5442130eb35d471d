#!/usr/bin/env bash
# Usage: install_test.sh CMAKE BUILD_DIR GENERATOR COMPILER FLAGS
set -euo pipefail
cmake="$1" build="$2" generator="$3" compiler="$4" flags="$5"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/prefix" >/dev/null
for file in share/minfer/scripts/get_model.sh share/minfer/scripts/get_wikitext2.sh bin/minfer share/man/man1/minfer.1 share/bash-completion/completions/minfer \
    share/zsh/site-functions/_minfer share/fish/vendor_completions.d/minfer.fish; do
  [[ -s "$work/prefix/$file" ]] || { echo "$file is not installed"; exit 1; }
done
"$work/prefix/bin/minfer" --version

# What a message names can be called as it stands.
said="$(XDG_CACHE_HOME="$work" "$work/prefix/bin/minfer" generate -m smollm2 x 2>&1 </dev/null || true)"
script="$(grep -o '/[^ ]*get_model.sh' <<<"$said")"
[[ "$script" == "$work/prefix/share/minfer/scripts/get_model.sh" && -x "$script" ]]
{ "$script" 2>&1 || true; } | grep -q usage
if strings "$work/prefix/bin/minfer" | grep -F "$build"; then exit 1; fi

# Without any other model the one that comes along answers.
XDG_CACHE_HOME="$work" "$work/prefix/bin/minfer" generate -n 4 --temp 0 "Once upon a" >"$work/text" 2>"$work/talk"
grep -q "$work/prefix/share/minfer/demo" "$work/talk"
[[ -s "$work/text" ]]

"$cmake" -G "$generator" -S "$(dirname "$0")/consumer" -B "$work/build" \
  -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS="$flags" >/dev/null
"$cmake" --build "$work/build" >/dev/null
[[ "$("$work/build/consumer")" == "10 logits" ]]

# The same by pkg-config.
pc="$(find "$work/prefix" -name minfer.pc -printf '%h')"
read -ra options <<<"$flags $(PKG_CONFIG_PATH="$pc:${PKG_CONFIG_PATH:-}" pkg-config --cflags --libs minfer)"
"$compiler" -std=c++20 "$(dirname "$0")/consumer/main.cpp" -o "$work/by_pkg_config" "${options[@]}"
[[ "$("$work/by_pkg_config")" == "10 logits" ]]
