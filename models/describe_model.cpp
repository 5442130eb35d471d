#include "models/describe_model.h"

#include <cmath>

namespace minfer {
namespace {

// "135M", "1.1B"
std::string short_count(int64_t n) {
  const auto value = static_cast<double>(n);
  if (value < 999.5e3) return cat(std::llround(value / 1e3), "K");
  if (value < 999.5e6) return cat(std::llround(value / 1e6), "M");
  return cat(std::round(value / 1e8) / 10, "B");
}

int64_t bytes_of_vector(const DeviceTensor& vector) { return vector ? vector.view().n_bytes() : 0; }

// One row of a table is read for each token.
int64_t bytes_of_row(const Matrix& table) { return table ? table.n_bytes / table.out_dim : 0; }

}  // namespace

void describe_model(Model& model) {
  const Weights& w = model.weights;
  int64_t n_bytes = bytes_of_row(w.embedding) + bytes_of_row(w.positions) +
                    bytes_of_vector(w.output_norm) + bytes_of_vector(w.output_norm_bias) +
                    w.output_matrix().n_bytes;
  for (const LayerWeights& l : w.layers) {
    for (const Matrix* matrix : {&l.wq, &l.wk, &l.wv, &l.wo, &l.w_gate, &l.w_up, &l.w_down}) {
      n_bytes += matrix->n_bytes;
    }
    for (const DeviceTensor* vector :
         {&l.attn_norm, &l.attn_norm_bias, &l.bq, &l.bk, &l.bv, &l.bo, &l.ffn_norm,
          &l.ffn_norm_bias, &l.b_gate, &l.b_up, &l.b_down}) {
      n_bytes += bytes_of_vector(*vector);
    }
  }
  model.bytes_per_token = n_bytes;
  model.description = cat(model.config.architecture_name(), " ", short_count(model.n_params), " ",
                          model.weight_types);
}

}  // namespace minfer
