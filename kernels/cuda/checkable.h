#pragma once

// A build with MINFER_CUDA_CHECKABLE, for scripts/sanitize_cuda.sh, avoids what the tools of
// compute-sanitizer (CUDA 13.0) cannot follow: initcheck does not see TMA stores through a tensor
// map; racecheck counts an arrival at an mbarrier for the reads of the arriving lane alone, even
// after __syncwarp(), and reports a volatile word as a race. Except for those few lines it runs the
// same code with the same results, only slower: threads store what such maps would.
namespace minfer::cuda {

#ifdef MINFER_CUDA_CHECKABLE
inline constexpr bool kIsCheckable = true;
#else
inline constexpr bool kIsCheckable = false;
#endif

}  // namespace minfer::cuda
