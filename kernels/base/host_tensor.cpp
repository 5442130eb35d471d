#include "kernels/base/host_tensor.h"

#include <new>

#include "kernels/base/quant_codec.h"

namespace minfer {
namespace {
constexpr std::align_val_t kAlignment{64};
}

void HostTensor::Free::operator()(std::byte* p) const { ::operator delete(p, kAlignment); }

void HostTensor::reset(DType dtype, const Shape& shape) {
  const auto n_bytes = static_cast<size_t>(bytes_of(dtype, shape));
  if (memory_ == nullptr || n_bytes > capacity_) {
    view_ = {};
    memory_.reset();  // first, so that the old and the new memory never exist together
    capacity_ = 0;
    void* memory = ::operator new(n_bytes, kAlignment, std::nothrow);
    MINFER_REQUIRE(Memory, memory != nullptr, "no memory for ", n_bytes, " bytes");
    memory_.reset(static_cast<std::byte*>(memory));
    capacity_ = n_bytes;
  }
  view_ = {memory_.get(), dtype, shape};
}

HostTensor to_f32_tensor(const Tensor& host) {
  HostTensor out(DType::F32, host.shape);
  const int64_t row = host.shape.last(), row_bytes = bytes_of(host.dtype, row);
  for (int64_t i = 0, n = host.n_elements(); i < n; i += row) {
    dequantize_row(out.as<float>() + i, static_cast<char*>(host.data) + i / row * row_bytes,
                   host.dtype, row);
  }
  return out;
}

}  // namespace minfer
