#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>

#include "kernels/base/dtype.h"
#include "kernels/base/math.h"

namespace minfer {

using TokenId = int32_t;

// Dims of a row-major tensor, outermost first; the last one is contiguous.
struct Shape {
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> list) {
    MINFER_CHECK(list.size() <= kMaxRank, "a shape of rank ", list.size());
    for (int64_t d : list) dims[static_cast<size_t>(rank++)] = d;
  }

  int64_t operator[](int i) const { return dims[static_cast<size_t>(i)]; }
  int64_t last() const { return rank == 0 ? 1 : (*this)[rank - 1]; }
  // Product of the dims. Throws Input where it overflows; a dim of 0 hides no overflow.
  int64_t n_elements() const {
    int64_t product = 1;
    bool empty = false;
    for (int i = 0; i < rank; ++i) {
      if ((*this)[i] == 0) {
        empty = true;
      } else {
        product = checked_mul(product, (*this)[i]);
      }
    }
    return empty ? 0 : product;
  }
  bool operator==(const Shape&) const = default;

  std::array<int64_t, kMaxRank> dims{};  // unused ones are 0
  int rank = 0;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);  // [4096, 11008]

// Bytes of a tensor of whole rows. Throws Input where a product overflows.
int64_t bytes_of(DType dtype, const Shape& shape);

// A view: who owns the memory is said where the view is made. Null data is "no tensor", as for an
// optional bias.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::F32;
  Shape shape;

  explicit operator bool() const { return data != nullptr; }
  int64_t n_elements() const { return shape.n_elements(); }
  int64_t n_bytes() const { return bytes_of(dtype, shape); }

  template <typename T>
  T* as() const {
    MINFER_CHECK(dtype_of<std::remove_const_t<T>>::value == dtype, "tensor of ", dtype,
                 " read as another type");
    return static_cast<T*>(data);
  }

  // The same memory under another shape of as many elements.
  Tensor reshaped(const Shape& other) const {
    MINFER_CHECK(other.n_elements() == n_elements(), "reshape of ", shape.n_elements(), " to ",
                 other.n_elements(), " elements");
    return {data, dtype, other};
  }

  // Rows [begin, begin + n) of the outermost dim.
  Tensor rows(int64_t begin, int64_t n) const {
    MINFER_CHECK(shape.rank >= 1 && begin >= 0 && n >= 0 && begin + n <= shape[0], "rows [", begin,
                 ", ", begin + n, ") of ", shape[0]);
    Tensor part = *this;
    part.shape.dims[0] = n;
    Shape row = shape;
    row.dims[0] = 1;
    part.data = static_cast<char*>(data) + begin * bytes_of(dtype, row);
    return part;
  }
};

}  // namespace minfer
