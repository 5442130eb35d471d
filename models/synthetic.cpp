#include "models/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>

#include "kernels/base/random.h"
#include "models/describe_model.h"
#include "models/host_memory.h"

namespace minfer {
namespace {

struct KnownShape {
  const char* name;
  int64_t dim, ffn_dim, n_layers, n_heads, n_kv_heads, vocab_size, trained_seq_len;
  double rope_theta;
  bool tied_output;
};

constexpr KnownShape kKnownShapes[] = {
    {"tiny", 64, 172, 2, 4, 2, 256, 512, 1e4, false},
    {"smollm2-135m", 576, 1536, 30, 9, 3, 49152, 8192, 1e5, true},
    {"tinyllama-1.1b", 2048, 5632, 22, 32, 4, 32000, 2048, 1e4, false},
    {"llama-2-7b", 4096, 11008, 32, 32, 32, 32000, 4096, 1e4, false},
    {"llama-2-13b", 5120, 13824, 40, 40, 40, 32000, 4096, 1e4, false},
    {"llama-3-8b", 4096, 14336, 32, 32, 8, 128256, 8192, 5e5, false},
};

ModelConfig to_config(const KnownShape& shape) {
  ModelConfig config;
  config.dim = shape.dim;
  config.ffn_dim = shape.ffn_dim;
  config.n_layers = shape.n_layers;
  config.n_heads = shape.n_heads;
  config.n_kv_heads = shape.n_kv_heads;
  config.head_dim = config.rotary_dim = shape.dim / shape.n_heads;
  config.vocab_size = shape.vocab_size;
  config.trained_seq_len = shape.trained_seq_len;
  config.norm_eps = 1e-5f;
  config.rope_theta = shape.rope_theta;
  config.tied_output = shape.tied_output;
  return config;
}

// Weights one after another, each from its own counter, so that neither the number of threads nor
// the order of work changes them.
class WeightMaker {
 public:
  WeightMaker(DType dtype, Backend& backend, uint64_t seed)
      : dtype_(dtype), backend_(backend), seed_(seed) {}

  // Uniform with variance 1 / in_dim, in steps of 1 / 2048 of its range.
  Matrix matrix(int64_t out_dim, int64_t in_dim) {
    HostTensor tensor(dtype_, {out_dim, in_dim});
    const double bound = std::sqrt(3.0 / static_cast<double>(in_dim));
    visit_float(dtype_, [&]<typename T>() {
      std::array<T, kLevels> levels;
      for (size_t i = 0; i < kLevels; ++i) {
        const double unit = (2 * static_cast<double>(i) + 1) / kLevels - 1;
        levels[i] = from_f32<T>(static_cast<float>(unit * bound));
      }
      fill(tensor.as<T>(), out_dim * in_dim, levels);
    });
    ++n_tensors_;
    n_params_ += out_dim * in_dim;
    return backend_.pack_matrix(tensor);
  }

  DeviceTensor vector(int64_t n, float value) {
    HostTensor tensor(DType::F32, {n});
    std::fill_n(tensor.as<float>(), n, value);
    n_params_ += n;
    return backend_.upload_vector(tensor);
  }

  int64_t n_params() const { return n_params_; }

 private:
  static constexpr size_t kLevels = 4096;

  template <typename T>
  void fill(T* out, int64_t n, const std::array<T, kLevels>& levels) const {
    const uint64_t stream = mix64(seed_ ^ mix64(n_tensors_));
    const int64_t n_groups = ceil_div(n, 4);  // four weights from one hash
    const auto n_threads = std::max<int64_t>(
        1, std::min<int64_t>(std::thread::hardware_concurrency(), n_groups / 65536));
    const auto fill_groups = [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) {
        uint64_t bits = mix64(stream + static_cast<uint64_t>(group));
        for (int64_t i = 4 * group; i < std::min(4 * group + 4, n); ++i, bits >>= 16) {
          out[i] = levels[bits % kLevels];
        }
      }
    };
    std::vector<std::jthread> threads;
    for (int64_t t = 0; t < n_threads; ++t) {
      threads.emplace_back(fill_groups, n_groups * t / n_threads, n_groups * (t + 1) / n_threads);
    }
  }

  DType dtype_;
  Backend& backend_;
  uint64_t seed_, n_tensors_ = 0;
  int64_t n_params_ = 0;
};

LayerWeights make_layer(const ModelConfig& c, WeightMaker& make) {
  const auto bias = [&](bool present, int64_t n) {
    return present ? make.vector(n, 0.01f) : DeviceTensor();
  };
  LayerWeights l;
  l.attn_norm = make.vector(c.dim, 1);
  l.attn_norm_bias = bias(!c.is_llama(), c.dim);
  l.wq = make.matrix(c.q_dim(), c.dim);
  l.wk = make.matrix(c.kv_dim(), c.dim);
  l.wv = make.matrix(c.kv_dim(), c.dim);
  l.wo = make.matrix(c.dim, c.q_dim());
  l.bq = bias(c.attention_bias, c.q_dim());
  l.bk = bias(c.attention_bias, c.kv_dim());
  l.bv = bias(c.attention_bias, c.kv_dim());
  l.bo = bias(c.attention_out_bias, c.dim);
  l.ffn_norm = make.vector(c.dim, 1);
  l.ffn_norm_bias = bias(!c.is_llama(), c.dim);
  if (c.is_llama()) l.w_gate = make.matrix(c.ffn_dim, c.dim);
  l.w_up = make.matrix(c.ffn_dim, c.dim);
  l.w_down = make.matrix(c.dim, c.ffn_dim);
  l.b_gate = bias(c.mlp_bias && c.is_llama(), c.ffn_dim);
  l.b_up = bias(c.mlp_bias, c.ffn_dim);
  l.b_down = bias(c.mlp_bias, c.dim);
  return l;
}

int64_t n_matrix_elements(const ModelConfig& c) {
  const int64_t attention = c.dim * (2 * c.q_dim() + 2 * c.kv_dim());
  const int64_t ffn = (c.is_llama() ? 3 : 2) * c.dim * c.ffn_dim;
  return c.n_layers * (attention + ffn) + (c.tied_output ? 1 : 2) * c.vocab_size * c.dim;
}

}  // namespace

Model make_synthetic_model(const ModelConfig& config, DType dtype, Backend& backend,
                           uint64_t seed) {
  const int64_t largest = config.dim * std::max(config.vocab_size, config.ffn_dim);
  require_host_memory(bytes_of(dtype, n_matrix_elements(config) + largest), "the model");
  Model model;
  model.name = "synthetic";
  model.config = config;
  model.weight_types = info(dtype).name;
  WeightMaker make(dtype, backend, seed);
  Weights& w = model.weights;
  w.embedding = make.matrix(config.vocab_size, config.dim);
  if (!config.is_llama()) w.positions = make.matrix(config.trained_seq_len, config.dim);
  for (int64_t i = 0; i < config.n_layers; ++i) w.layers.push_back(make_layer(config, make));
  w.output_norm = make.vector(config.dim, 1);
  if (!config.is_llama()) w.output_norm_bias = make.vector(config.dim, 0.01f);
  if (!config.tied_output) w.output = make.matrix(config.vocab_size, config.dim);
  model.n_params = make.n_params();
  model.file_bytes = bytes_of(dtype, model.n_params);
  describe_model(model);
  return model;
}

Model make_synthetic_model(const std::string& spec, Backend& backend, uint64_t seed) {
  const size_t colon = spec.find(':');
  const std::string name = spec.substr(0, colon);
  const std::string type = colon == std::string::npos ? "f16" : spec.substr(colon + 1);
  const auto shape = std::find_if(std::begin(kKnownShapes), std::end(kKnownShapes),
                                  [&](const KnownShape& known) { return name == known.name; });
  std::string list;
  for (const std::string& known : synthetic_names()) list += (list.empty() ? "" : ", ") + known;
  MINFER_REQUIRE(Usage, shape != std::end(kKnownShapes), "no synthetic model \"", shortened(name),
                 "\" (there are: ", list, ")");
  MINFER_REQUIRE(Usage, type == "f16" || type == "bf16" || type == "f32",
                 "no synthetic weight type \"", shortened(type), "\" (there are: f16, bf16, f32)");
  const DType dtype = type == "f16" ? DType::F16 : type == "bf16" ? DType::BF16 : DType::F32;
  Model model = make_synthetic_model(to_config(*shape), dtype, backend, seed);
  model.name = name;
  return model;
}

std::vector<std::string> synthetic_names() {
  std::vector<std::string> names;
  for (const KnownShape& shape : kKnownShapes) names.emplace_back(shape.name);
  return names;
}

}  // namespace minfer
