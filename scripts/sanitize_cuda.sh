#!/usr/bin/env bash
# Runs the tests of kernels and of small models on a card under the four tools of compute-sanitizer,
# a few short cases of each, and prints one line for each tool and test. Fails at any report. The
# build is one that the tools can follow (kernels/cuda/checkable.h says why):
#   cmake --preset release -B build/checkable -DMINFER_CUDA=ON -DMINFER_CUDA_CHECKABLE=ON
#   cmake --build build/checkable
# Usage: scripts/sanitize_cuda.sh [BUILD_DIR [JOBS [REGEX]]]   (REGEX: of tests and cases, those alone)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build="${1:-build/checkable}" jobs="${2:-8}" only="${3:-.}"
export PATH="$PATH:/usr/local/cuda/bin"
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "skipped: no NVIDIA card (nvidia-smi finds none)" >&2
  exit 0
fi
if ! command -v compute-sanitizer >/dev/null; then
  echo "compute-sanitizer of the CUDA toolkit is not on the PATH" >&2
  exit 2
fi

if ! grep -qsE '^MINFER_CUDA_CHECKABLE:BOOL=(ON|1|TRUE|YES)$' "$build/CMakeCache.txt"; then
  echo "$build is not configured with MINFER_CUDA_CHECKABLE=ON: expect reports of what is right" >&2
fi

# Binary below tests/ and its cases, the longest first. Instrumented kernels take 10 to 100 times as
# long as else, so: small shapes, each kernel in one of its types at least.
cases() {
  local prefill=Heads/Prefill.MatchesFloat64 decode=Heads/Decode.MatchesFloat64AndAppendsExactly
  local norm=Shapes/CudaNorm model=Models/CudaFixtures.AgreeWithTransformers/
  echo "engine/cuda_model_test" \
    "${model}models_llama_head64_f16:${model}models_gpt2_f32:${model}quantized_ct_int4_g32:${model}quantized_ct_int8_row:CudaModel.NamesThePosition*"
  echo "engine/cuda_model_test" "${model}models_mistral_window_f16:${model}models_qwen3_head64_f16"
  echo "engine/cuda_model_test" "CudaModel.DecodesBehind*"
  # heads of 64 (F16 and U8, both kernels), 128, 80, 96, 256 and 37
  echo "kernels/cuda/cuda_attention_test" \
    "$prefill/0:$prefill/2:$prefill/3:$prefill/12:$prefill/26:$prefill/36:$prefill/84:$prefill/97:CudaRope*:CudaKvAppend.*"
  local windows=Heads/Prefill.WindowsMatchFloat64
  echo "kernels/cuda/cuda_attention_test" "$windows/12:$windows/13:$windows/14"
  echo "kernels/cuda/cuda_attention_decode_test" "DecodeOfSequences.*"
  echo "kernels/cuda/cuda_attention_decode_test" "DecodeOfWindows.*"
  echo "kernels/cuda/cuda_attention_decode_test" "$decode/0:$decode/1:$decode/5:$decode/12:$decode/38"
  echo "kernels/cuda/cuda_gemv_test" \
    "*EveryQuantizedFormat/F16:*PlainKernelTakes/F16:*PartsOfSeveralFormats/BF16:*NormsBiases*/F16"
  echo "kernels/cuda/cuda_gemv_test" "*RmsNormOfOddRows/F16"
  echo "kernels/cuda/cuda_gemm_test" "*SumsLeaveUnderTheNextTile"
  echo "kernels/cuda/cuda_gemm_test" \
    "*EveryEpilogueInEveryTile/*:*OddRowsOfOut/*:*ReplaysInAGraph:*SmallAndOddShapes:*HasTheBitsOfGemmAndRopeAppend"
  echo "kernels/cuda/cuda_codes_test" "CudaCodes.QuantizesRows:*UnpacksParts:*OddShapes"
  echo "kernels/cuda/cuda_dequantize_test" "*RangesOfRows/F16:*Parts/F16:*Floats/BF16:CudaGather.*"
  echo "kernels/cuda/cuda_elementwise_test" \
    "CudaSoftmax.*:CudaLikelihoods.*:CudaFinite.*:*SumsAndProducts*/0:$norm.*/2:$norm.*/6:$norm.*/12:$norm.*/19:$norm.*/39:$norm.*/42:$norm.*/53"
  echo "kernels/cuda/cuda_choose_token_test" "*SaysWhere*:*LeavesOut*:*BehindEachRow"
}

logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT

# run PORT TOOL TEST FILTER: every process talks to its tool by ports of its own. By default synccheck
# allows fewer barriers in a block than the persistent decode step uses, and makes it fail.
run() {
  local log="$logs/$1.log" status=0 report ran options=()
  if [[ "$2" == synccheck ]]; then options=(--num-cuda-barriers 256); fi
  timeout -k 10 240 compute-sanitizer --tool "$2" --port "$1" --error-exitcode 86 --print-limit 20 \
    "${options[@]}" "$build/tests/$3" --gtest_filter="$4" >"$log" 2>&1 || status=$?
  report="$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | sed 's/.*SUMMARY: //' | tail -1)"
  ran="$(grep -c '^\[       OK \]' "$log" || true)"
  echo "$2 ${3##*/}: ${report:-no summary}, $ran cases passed"
  if ((status == 124 || status == 137)); then echo "  not done after 240 s"; fi
  if ((status == 0 && ran > 0)) && [[ "$report" =~ ^0\ (errors|hazards) ]]; then return 0; fi
  grep -vE '^\[ +(RUN|OK) ' "$log" | head -40 | sed 's/^/  /'
  return 1
}
export -f run
export build logs

port=50000
while read -r test filter; do
  for tool in racecheck initcheck memcheck synccheck; do
    printf '%s %s %s %s\0' "$port" "$tool" "$test" "$filter"
    ((port += 20))
  done
done < <(cases | grep -E "$only") |
  xargs -0 -P "$jobs" -I{} bash -c 'set -f; run $1' _ {}
