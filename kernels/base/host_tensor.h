#pragma once

#include <cstddef>
#include <memory>

#include "kernels/base/tensor.h"

namespace minfer {

// A row-major tensor in host memory of its own, 64-byte aligned, not initialized.
// Throws Memory, with the bytes asked for, where there is none.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, const Shape& shape) { reset(dtype, shape); }
  // Becomes another tensor, not initialized, in the same memory where that is large enough: pages
  // that have been touched cost nothing.
  void reset(DType dtype, const Shape& shape);

  const Tensor& view() const { return view_; }
  operator Tensor() const { return view_; }

  template <typename T>
  T* as() const {
    return view_.as<T>();
  }
  // Element i in storage order, as f32; float dtypes only.
  float at(int64_t i) const {
    return visit_float(view_.dtype, [&]<typename T>() { return to_f32(view_.as<const T>()[i]); });
  }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t capacity_ = 0;  // bytes of memory_
  Tensor view_;
};

// A copy of any tensor as f32, dequantized where it is quantized; rows are whole blocks.
HostTensor to_f32_tensor(const Tensor& host);

}  // namespace minfer
