#include "models/describe_model.h"

#include <cmath>

#include "models/weight_list.h"

namespace minfer {
namespace {

// "135M", "1.1B"
std::string short_count(int64_t n) {
  const auto value = static_cast<double>(n);
  if (value < 999.5e3) return cat(std::llround(value / 1e3), "K");
  if (value < 999.5e6) return cat(std::llround(value / 1e6), "M");
  return cat(std::round(value / 1e8) / 10, "B");
}

// Bytes of the weights that one rank reads for a token.
int64_t bytes_per_token(const Model& model) {
  const Weights& weights = model.weights;
  int64_t n_bytes = 0;
  for_each_weight(model.spec, [&](const WeightInfo& weight) {
    // A token reads some experts, and all have one size.
    if (weight.is_of_expert() && weight.expert >= model.spec.layer(weight.layer).n_active_experts) {
      return;
    }
    if (!weight.is_matrix()) {
      const DeviceTensor& vector = vector_of(weights, weight);
      if (vector) n_bytes += vector.view().n_bytes();
      return;
    }
    const Matrix& matrix = matrix_of(weights, weight);
    // Each token reads one row of a table; a tied embedding is the output matrix besides.
    const bool is_looked_up = weight.is_table || weight.role == WeightRole::Embedding;
    if (is_looked_up) n_bytes += matrix.n_bytes / matrix.out_dim;
    if (!weight.is_table) n_bytes += matrix.n_bytes;
  });
  return n_bytes;
}

}  // namespace

void describe_model(Model& model) {
  model.bytes_per_token = bytes_per_token(model);
  for (const Model& rank : model.other_ranks) model.bytes_per_token += bytes_per_token(rank);
  model.description =
      cat(model.spec.family, " ", short_count(model.n_params), " ", model.weight_types);
}

}  // namespace minfer
