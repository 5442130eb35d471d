#pragma once

// A build with MINFER_CUDA_CHECKABLE, for scripts/sanitize_cuda.sh, keeps to what the tools of
// compute-sanitizer (CUDA 13.0) can follow: initcheck does not see what the copy engine stores by a
// tensor map; racecheck takes a lane's arrival at an mbarrier to speak of that lane's reads alone,
// also where __syncwarp() stands in front of it, and a volatile word for a race. The same sums by
// the same code but for those few lines, only slower: it stores by threads and not by such maps.
namespace minfer::cuda {

#ifdef MINFER_CUDA_CHECKABLE
inline constexpr bool kIsCheckable = true;
#else
inline constexpr bool kIsCheckable = false;
#endif

}  // namespace minfer::cuda
