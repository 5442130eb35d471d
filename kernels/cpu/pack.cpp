#include "kernels/cpu/pack.h"

#include <algorithm>
#include <vector>

#include "kernels/base/quant_codec.h"
#include "kernels/cpu/layout.h"

namespace minfer::cpu {
namespace {

// rows [n_rows, cols] to one panel [cols][kPanel]
template <typename T>
void pack_panel(T* panel, const T* rows, int64_t n_rows, int64_t cols) {
  for (int64_t col = 0; col < cols; ++col, panel += kPanel) {
    for (int64_t lane = 0; lane < n_rows; ++lane) panel[lane] = rows[lane * cols + col];
    std::fill(panel + n_rows, panel + kPanel, T{});
  }
}

}  // namespace

void pack_panels(void* panels, DType stored, const Tensor& host, int64_t panel_begin,
                 int64_t panel_end) {
  const int64_t out_dim = host.shape[0], in_dim = host.shape[1];
  std::vector<float> dequantized;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const int64_t n_rows = std::min(kPanel, out_dim - panel * kPanel);
    const Tensor rows = host.rows(panel * kPanel, n_rows);
    visit_float(stored, [&]<typename T>() {
      T* const to = static_cast<T*>(panels) + panel * in_dim * kPanel;
      if (is_float(host.dtype)) {
        pack_panel(to, rows.as<const T>(), n_rows, in_dim);
      } else if constexpr (std::is_same_v<T, float>) {
        dequantized.resize(static_cast<size_t>(kPanel * in_dim));
        dequantize_row(dequantized.data(), rows.data, host.dtype, n_rows * in_dim);
        pack_panel(to, dequantized.data(), n_rows, in_dim);
      }
    });
  }
}

void unpack_row(float* out, const void* panels, DType stored, int64_t row, int64_t in_dim) {
  visit_float(stored, [&]<typename T>() {
    const T* from = static_cast<const T*>(panels) + panel_offset(row, 0, in_dim);
    for (int64_t i = 0; i < in_dim; ++i) out[i] = to_f32(from[i * kPanel]);
  });
}

}  // namespace minfer::cpu
