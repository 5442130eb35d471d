#!/usr/bin/env bash
# Puts the WikiText-2 test text (CC BY-SA, Salesforce) into ${XDG_CACHE_HOME:-~/.cache}/minfer/data,
# for `minfer eval perplexity --text wikitext2`: from a public copy, or from FILE.
# Usage: scripts/get_wikitext2.sh [wiki.test.raw]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

file=wiki.test.raw
sha256=173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08
archives=(  # each is wikitext-2-raw-v1.zip
  https://huggingface.co/datasets/ggml-org/ci/resolve/main/wikitext-2-raw-v1.zip
  https://hf-mirror.com/datasets/ggml-org/ci/resolve/main/wikitext-2-raw-v1.zip
  https://github.com/kpot/keras-transformer/raw/master/example/wikitext-2-raw-v1.zip
  https://wikitext.smerity.com/wikitext-2-raw-v1.zip
)
if (($# > 1)); then
  echo "usage: $0 [$file]" >&2
  exit 2
fi

data="${XDG_CACHE_HOME:-$HOME/.cache}/minfer/data"
has_digest() { sha256sum --status -c <<<"$sha256  $1" 2>/dev/null; }
if has_digest "$data/$file"; then
  echo "$data/$file is already there" >&2
  exit 0
fi

mkdir -p "$data"
work="$(mktemp -d "$data/.fetch.XXXXXX")"  # beside the target, so that the move is atomic
trap 'rm -rf "$work"' EXIT

# fetch URL: whether the archive there holds the text.
fetch() {
  echo "fetching $1" >&2
  curl -fsSL --connect-timeout 20 --max-time 300 -o "$work/archive.zip" "$1" &&
    unzip -q -o -j "$work/archive.zip" "*/$file" -d "$work" && has_digest "$work/$file"
}

if (($# == 1)); then
  install -m 644 -- "$1" "$work/$file" || exit 3
  has_digest "$work/$file" || { echo "$1 is not $file of WikiText-2 (SHA-256 $sha256)" >&2; exit 3; }
else
  install_packages "${data_packages[@]}"
  found=
  for archive in "${archives[@]}"; do
    if fetch "$archive"; then found=yes && break; fi
  done
  if [[ -z "$found" ]]; then
    echo "no copy could be fetched; with the file at hand: $0 $file" >&2
    exit 4
  fi
fi
mv "$work/$file" "$data/$file"
echo "$data/$file" >&2
