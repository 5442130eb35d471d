#include "kernels/cpu/memory.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <new>

namespace minfer::cpu {
namespace {
constexpr size_t kCacheLine = 64, kHugePage = size_t{2} << 20;
}

DeviceTensor allocate_tensor(DType dtype, const Shape& shape) {
  const auto n_bytes = static_cast<size_t>(std::max<int64_t>(bytes_of(dtype, shape), 1));
  const bool huge = n_bytes >= kHugePage;
  const std::align_val_t alignment{huge ? kHugePage : kCacheLine};
  void* memory = ::operator new(n_bytes, alignment, std::nothrow);
  MINFER_REQUIRE(Memory, memory != nullptr, "no memory for ", n_bytes, " bytes");
#if defined(__linux__)
  if (huge) madvise(memory, n_bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // only a hint
#endif
  return {Tensor{memory, dtype, shape}, [alignment](void* p) { ::operator delete(p, alignment); }};
}

}  // namespace minfer::cpu
