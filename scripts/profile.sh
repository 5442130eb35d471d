#!/usr/bin/env bash
# Profiles a kernel, a step of decode, or a layer of prefill, on a card: by Nsight Compute (ncu), and
# where Nsight Systems (nsys) is installed, decode and prefill as a timeline too. Prints the few
# counters that matter and keeps the whole reports in build/profiles; docs/profiling.md reads them.
# Usage: scripts/profile.sh KERNEL|decode|prefill [WEIGHTS]
#   KERNEL   of `minfer bench kernels`: rms_norm, gemm_store, attention_prefill, 'gelu_erf 8192 x 11008'
#   WEIGHTS  of decode and prefill: f16 (usual), bf16, int8, int4
#   MINFER   another binary than build/release/tools/minfer
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what="${1:?KERNEL, decode or prefill}" weights="${2:-f16}"
minfer="${MINFER:-build/release/tools/minfer}"
reports=build/profiles
export PATH="$PATH:/usr/local/cuda/bin"
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "skipped: no NVIDIA card (nvidia-smi finds none)" >&2
  exit 0
fi
if ! command -v ncu >/dev/null; then
  echo "ncu, Nsight Compute of the CUDA toolkit, is not on the PATH" >&2
  exit 2
fi
mkdir -p "$reports"
name="${what%% *}" report="$reports/${what// /_}"
model=(bench --synthetic "llama-2-7b:$weights" --quiet --no-warmup -r 1)

# The command, the CUDA functions that count, and how many of their launches to leave out: the first
# ones, whose memory is new.
case "$name" in
  decode)
    report+="_$weights"
    command=("$minfer" "${model[@]}" -p 0 -n 4 -d 128)
    functions='step_kernel' skip=2 count=1 ;;
  prefill)
    report+="_$weights"
    command=("$minfer" "${model[@]}" -p 4096 -n 0)
    functions='hgemm|prefill_|norm_kernel|dequantize|quantize_rows|unpack_codes' skip=70 count=8 ;;
  *)
    filter="^$what"
    if [[ "$what" == "$name" ]]; then filter+=' '; fi
    command=("$minfer" bench kernels --quiet --device cuda --filter "$filter")
    skip=4 count=1
    case "$name" in
      *norm*) functions='norm' ;;
      gemm_* | codes_*) functions='hgemm|gemm_mma' ;;
      gemv_*) functions='gemv' ;;
      attention_prefill) functions='prefill_' ;;
      attention_decode) functions='decode_kernel' ;;
      gelu_* | bias_gelu_* | silu | swiglu | add | add_bias) functions='map_kernel|zip_kernel' ;;
      negative_log_likelihoods) functions='nll' ;;
      kv_append_*) functions='append' ;;
      *) functions="$name" ;;  # named as the kernel
    esac ;;
esac

# The clock as it is, and caches as a launch finds them: what a run has, not what repeats best.
ncu --force-overwrite --export "$report" --clock-control none --cache-control none \
  --kernel-name "regex:$functions" --launch-skip "$skip" --launch-count "$count" \
  --section SpeedOfLight --section MemoryWorkloadAnalysis --section Occupancy \
  --section WarpStateStats --section SourceCounters --section LaunchStats \
  --metrics dram__bytes_read.sum,dram__bytes_write.sum,smsp__sass_average_branch_targets_threads_uniform.pct \
  "${command[@]}" >"$report.txt"
ncu --import "$report.ncu-rep" --page raw --csv --print-units base >"$report.csv"
python3 - "$report.csv" <<'PYTHON'
import csv
import re
import sys

STALL = re.compile(r"smsp__average_warps?_issue_stalled_(\w+)_per_issue_active\.ratio|"
                   r"smsp__average_warp_latency_issue_stalled_(\w+)\.ratio")
COUNTERS = {
    "us": ("gpu__time_duration.sum", 1e-3),
    "DRAM, % of peak": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "MB read": ("dram__bytes_read.sum", 1e-6),
    "MB written": ("dram__bytes_write.sum", 1e-6),
    "SM, % of peak": ("sm__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "occupancy, %": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
    "uniform branches, %": ("smsp__sass_average_branch_targets_threads_uniform.pct", 1),
    "registers": ("launch__registers_per_thread", 1),
}
with open(sys.argv[1], newline="") as file:
    lines = [line for line in file if line.startswith('"')]  # behind the tool's own messages
rows = [row for row in csv.DictReader(lines) if row.get("Kernel Name")]
if not rows:
    sys.exit("no launch was profiled: does the command run these kernels?")
number = lambda text: float(text.replace(",", "")) if re.fullmatch(r"[\d.,]+", text or "") else None
for row in rows:
    name = re.search(r"\w+_kernel(<[^()]*>)?", row["Kernel Name"])
    print(name[0] if name else row["Kernel Name"], row.get("Grid Size", ""), "x", row.get("Block Size", ""))
    for name, (metric, factor) in COUNTERS.items():
        value = number(row.get(metric))
        if value is not None and not (name.startswith("uniform") and value == 0):  # there are no branches
            print(f"  {name:20} {value * factor:10.1f}")
    stalls = {}
    for metric, text in row.items():
        match = STALL.fullmatch(metric or "")
        if match and number(text) and "not_issued" not in metric:
            stalls[match[1] or match[2]] = number(text)
    total = sum(stalls.values())
    for name, value in sorted(stalls.items(), key=lambda item: -item[1])[:3]:
        print(f"  waits for {name.replace('_', ' '):20} {100 * value / total:5.0f} % of the warps' time")
PYTHON
echo "the whole report: $report.ncu-rep (ncu-ui), $report.csv"

if [[ "$what" == decode || "$what" == prefill ]] && command -v nsys >/dev/null; then
  nsys profile --force-overwrite true --output "$report" --trace cuda --cuda-graph-trace node \
    "${command[@]}" >"$report.nsys.txt"
  nsys stats --force-export true --report cuda_gpu_kern_sum "$report.nsys-rep" | head -24
  echo "the timeline: $report.nsys-rep (nsys-ui)"
fi
