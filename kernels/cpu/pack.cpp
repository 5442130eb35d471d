#include "kernels/cpu/pack.h"

#include <algorithm>

#include "kernels/cpu/layout.h"

namespace minfer::cpu {

void pack_panel(const Tensor& panels, const Tensor& host, int64_t panel) {
  const int64_t in_dim = host.shape[1];
  const int64_t n_rows = std::min(kPanel, host.shape[0] - panel * kPanel);
  visit_float(host.dtype, [&]<typename T>() {
    const T* const from = host.as<const T>() + panel * kPanel * in_dim;
    T* to = panels.as<T>() + panel * kPanel * in_dim;
    for (int64_t col = 0; col < in_dim; ++col, to += kPanel) {
      for (int64_t lane = 0; lane < n_rows; ++lane) to[lane] = from[lane * in_dim + col];
      std::fill(to + n_rows, to + kPanel, T{});
    }
  });
}

void unpack_row(float* out, const Tensor& panels, int64_t row, int64_t in_dim) {
  visit_float(panels.dtype, [&]<typename T>() {
    const T* const from = panels.as<const T>() + panel_offset(row, 0, in_dim);
    for (int64_t i = 0; i < in_dim; ++i) out[i] = to_f32(from[i * kPanel]);
  });
}

}  // namespace minfer::cpu
