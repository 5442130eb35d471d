#!/usr/bin/env bash
# Fuzzes every parser on all cores: builds the fuzz programs with AddressSanitizer and
# UndefinedBehaviorSanitizer, runs each of their targets, and prints one line a target.
#
#   scripts/fuzz.sh [RUNS [SEED]]          RUNS inputs a target (default 100000), the same ones for
#                                          the same seed
#   FUZZ_DIR=DIR scripts/fuzz.sh ...       the programs fuzz_* of DIR, built elsewhere
#
# Inputs that a program failed on are left in the folder fuzz-reports. For a machine without the
# compiler, build here with FUZZ_LINK_FLAGS="-static-libasan -static-libubsan" and copy build/asan's
# fuzz programs there. Exit code 1 where there is a report.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
runs=${1:-100000}
seed=${2:-1}
cores=$(nproc)

if [[ -z ${FUZZ_DIR:-} ]]; then
  cd "$repo"
  cmake --preset asan -DCMAKE_EXE_LINKER_FLAGS="${FUZZ_LINK_FLAGS:-}" >/dev/null
  targets=$(sed -n 's/^minfer_fuzz(\([a-z_]*\).*/\1/p' tests/fuzz/CMakeLists.txt)
  # shellcheck disable=SC2086
  cmake --build build/asan --target $targets
  FUZZ_DIR=$repo/build/asan/tests/fuzz
fi
FUZZ_DIR=$(cd "$FUZZ_DIR" && pwd)
# Whole stacks of every allocation are a third of the time; they can be had from the input kept.
export ASAN_OPTIONS=${ASAN_OPTIONS:-malloc_context_size=1}
mkdir -p fuzz-reports
cd fuzz-reports

# Each target is cut into as many parts as there are cores, with a seed each.
parts=$cores
((runs >= parts)) || parts=1
list() {
  for program in "$FUZZ_DIR"/fuzz_*; do
    [[ -f $program && -x $program ]] || continue
    for target in $("$program" --list); do
      for ((part = 0; part < parts; ++part)); do
        echo "$program $target $((runs / parts)) $((seed * 1000 + part))"
      done
    done
  done
}
# A part that was ended by a sanitizer has no last line.
run_part() {
  local log=log-$2-$4
  if "$1" "$2" --runs "$3" --seed "$4" >"$log" 2>&1; then
    tail -n 1 "$log"
    rm -f "$log"
  elif tail -n 1 "$log" | grep -q ' runs, '; then
    tail -n 1 "$log"
  else
    echo "$2: 0 runs, 0 accepted, 1 reports, worst 0 ms, worst 0 MB"
  fi
}
export -f run_part
list | xargs -P "$cores" -L 1 bash -c 'run_part "$@"' run_part | awk '
  { sub(":", "", $1); runs[$1] += $2; accepted[$1] += $4; reports[$1] += $6; all += $2; bad += $6
    if ($9 + 0 > ms[$1] + 0) ms[$1] = $9
    if ($12 + 0 > mb[$1] + 0) mb[$1] = $12 }
  END {
    for (t in runs)
      printf "%-16s %10d runs %10d accepted %4d reports, worst %8.1f ms %8.2f MB\n",
             t, runs[t], accepted[t], reports[t], ms[t], mb[t] | "sort"
    close("sort")
    printf "%d runs, %d reports\n", all, bad
    exit bad > 0
  }'
