#include "models/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <thread>
#include <utility>

#include "kernels/base/parallel.h"
#include "kernels/base/random.h"
#include "kernels/base/usable_cores.h"
#include "kernels/comm/rank_group.h"
#include "models/describe_model.h"
#include "models/host_memory.h"
#include "models/memory_needed.h"
#include "models/shards.h"
#include "models/weight_list.h"

namespace minfer {
namespace {

struct KnownShape {
  const char* name;
  int64_t dim, ffn_dim, n_layers, n_heads, n_kv_heads, vocab_size, trained_seq_len;
  double rope_theta;
  bool tied_output;
  void (*change)(ModelSpec& spec) = nullptr;  // sets what is not of Llama's block
};

void set_in_all(ModelSpec& spec, const std::function<void(LayerSpec&)>& change) {
  for (LayerSpec& layer : spec.layers) change(layer);
}

void set_eps(ModelSpec& spec, float eps) {
  set_in_all(spec, [&](LayerSpec& layer) { layer.norm_eps = eps; });
  spec.edges.output_norm_eps = eps;
}

void to_mistral(ModelSpec& spec) {
  spec.family = "mistral";
  set_in_all(spec, [](LayerSpec& layer) { layer.window = 4096; });
}

void to_qwen3(ModelSpec& spec) {
  spec.family = "qwen3";
  set_eps(spec, 1e-6f);
  set_in_all(spec, [](LayerSpec& layer) { layer.qk_norm = QkNorm::PerHead; });
}

void set_experts(ModelSpec& spec, int64_t n, int64_t n_active) {
  set_in_all(spec, [&](LayerSpec& layer) {
    layer.n_experts = n;
    layer.n_active_experts = n_active;
    layer.renormalizes_experts = true;
  });
}

void to_mixtral(ModelSpec& spec) {
  spec.family = "mixtral";
  set_experts(spec, 8, 2);
}

// Its heads have 128 elements, whatever the width.
void to_qwen3_moe(ModelSpec& spec) {
  to_qwen3(spec);
  spec.family = "qwen3_moe";
  set_experts(spec, 128, 8);
  set_in_all(spec, [](LayerSpec& layer) { layer.head_dim = 128; });
  spec.ropes.front().rotary_dim = 128;
}

// Every second layer sees the whole context. Its heads have 64 elements, whatever the width.
void to_gpt_oss(ModelSpec& spec) {
  spec.family = "gpt_oss";
  set_experts(spec, 32, 4);
  set_in_all(spec, [](LayerSpec& layer) {
    layer.head_dim = 64;
    layer.qkv_bias = layer.attn_out_bias = layer.ffn_bias = layer.router_bias = true;
    layer.attn_sinks = true;
    layer.activation = Activation::ClampedSwiGlu;
    layer.swiglu_alpha = 1.702f;
    layer.swiglu_limit = 7;
  });
  for (size_t i = 0; i < spec.layers.size(); i += 2) spec.layers[i].window = 128;
  spec.ropes = {{.theta = 150000,
                 .rotary_dim = 64,
                 .scaling = RopeScaling::Yarn,
                 .factor = 32,
                 .original_seq_len = 4096,
                 .truncate = false,
                 .table_scale = yarn_table_scale(32)}};
}

void to_olmo2(ModelSpec& spec) {
  spec.family = "olmo2";
  set_eps(spec, 1e-6f);
  set_in_all(spec, [](LayerSpec& layer) {
    layer.norm_places = NormPlaces::Behind;
    layer.qk_norm = QkNorm::WholeWidth;
  });
}

void to_granite3(ModelSpec& spec) {
  spec.family = "granite";
  set_in_all(spec, [](LayerSpec& layer) {
    layer.residual_scale = 0.22f;
    layer.attn_scale = 0.0078125f;
  });
  spec.edges.embedding_scale = 12;
  spec.edges.logit_scale = 1.0f / 16;
}

// What the blocks of all of Gemma have. Their heads have 256 elements, whatever the width.
void to_gemma(ModelSpec& spec) {
  set_eps(spec, 1e-6f);
  set_in_all(spec, [](LayerSpec& layer) {
    layer.head_dim = 256;
    layer.norm_places = NormPlaces::Both;
    layer.activation = Activation::GeluTanh;
  });
  for (RopeSpec& rope : spec.ropes) rope.rotary_dim = 256;
  spec.edges.embedding_scale = std::sqrt(static_cast<float>(spec.dim));
}

// Every second layer sees the whole context.
void to_gemma2(ModelSpec& spec) {
  to_gemma(spec);
  spec.family = "gemma2";
  set_in_all(spec, [](LayerSpec& layer) { layer.attn_softcap = 50; });
  for (size_t i = 0; i < spec.layers.size(); i += 2) spec.layers[i].window = 4096;
  spec.edges.logit_softcap = 30;
}

// Every sixth layer sees the whole context, and rotates by a table of its own.
void to_gemma3(ModelSpec& spec) {
  to_gemma(spec);
  spec.family = "gemma3";
  RopeSpec local = spec.ropes[0];
  local.theta = 1e4;
  spec.ropes[0].scaling = RopeScaling::Linear;
  spec.ropes[0].factor = 8;
  spec.ropes.push_back(local);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.qk_norm = QkNorm::PerHead;
    if (i % 6 == 5) continue;
    layer.window = 1024;
    layer.rope = 1;
  }
}

void to_gemma3_27b(ModelSpec& spec) {
  to_gemma3(spec);
  set_in_all(spec, [](LayerSpec& layer) {
    layer.head_dim = 128;
    layer.attn_scale = 1 / std::sqrt(168.0f);
  });
  for (RopeSpec& rope : spec.ropes) rope.rotary_dim = 128;
}

// Sizes of the published config.json files.
constexpr KnownShape kKnownShapes[] = {
    {"tiny", 64, 172, 2, 4, 2, 256, 512, 1e4, false},
    {"smollm2-135m", 576, 1536, 30, 9, 3, 49152, 8192, 1e5, true},
    {"tinyllama-1.1b", 2048, 5632, 22, 32, 4, 32000, 2048, 1e4, false},
    {"llama-2-7b", 4096, 11008, 32, 32, 32, 32000, 4096, 1e4, false},
    {"llama-2-13b", 5120, 13824, 40, 40, 40, 32000, 4096, 1e4, false},
    {"llama-2-70b", 8192, 28672, 80, 64, 8, 32000, 4096, 1e4, false},
    {"llama-3-8b", 4096, 14336, 32, 32, 8, 128256, 8192, 5e5, false},
    {"mistral-7b", 4096, 14336, 32, 32, 8, 32000, 32768, 1e4, false, to_mistral},  // v0.1
    {"qwen3-8b", 4096, 12288, 36, 32, 8, 151936, 40960, 1e6, false, to_qwen3},
    {"olmo-2-7b", 4096, 11008, 32, 32, 32, 100352, 4096, 5e5, false, to_olmo2},
    {"granite-3-8b", 4096, 12800, 40, 32, 8, 49155, 4096, 1e4, true, to_granite3},  // 3.0
    {"gemma-2-9b", 3584, 14336, 42, 16, 8, 256000, 8192, 1e4, true, to_gemma2},
    {"gemma-3-12b", 3840, 15360, 48, 16, 8, 262208, 131072, 1e6, true, to_gemma3},
    {"gemma-3-27b", 5376, 21504, 62, 32, 16, 262208, 131072, 1e6, true, to_gemma3_27b},
    {"tiny-moe", 64, 96, 2, 4, 2, 256, 512, 1e4, false, to_mixtral},
    {"mixtral-8x7b", 4096, 14336, 32, 32, 8, 32000, 32768, 1e6, false, to_mixtral},
    {"mixtral-8x7b-l8", 4096, 14336, 8, 32, 8, 32000, 32768, 1e6, false, to_mixtral},
    {"qwen3-30b-a3b", 2048, 768, 48, 32, 4, 151936, 40960, 1e6, false, to_qwen3_moe},
    {"gpt-oss-20b", 2880, 2880, 24, 64, 8, 201088, 131072, 150000, false, to_gpt_oss},
};

ModelSpec to_spec(const KnownShape& shape) {
  LayerSpec layer;
  layer.n_heads = shape.n_heads;
  layer.n_kv_heads = shape.n_kv_heads;
  layer.head_dim = shape.dim / shape.n_heads;
  layer.ffn_dim = shape.ffn_dim;
  layer.norm_eps = 1e-5f;
  layer.rope = 0;
  ModelSpec spec;
  spec.family = "llama";
  spec.dim = shape.dim;
  spec.vocab_size = shape.vocab_size;
  spec.trained_seq_len = shape.trained_seq_len;
  spec.layers.assign(static_cast<size_t>(shape.n_layers), layer);
  spec.ropes = {{.theta = shape.rope_theta, .rotary_dim = layer.head_dim}};
  spec.edges.output_norm_eps = layer.norm_eps;
  spec.tied_output = shape.tied_output;
  if (shape.change != nullptr) shape.change(spec);
  return spec;
}

// Weights one after another, each from its own counter, so that neither the number of threads nor
// the order of work changes them.
class WeightMaker {
 public:
  WeightMaker(Backend& backend, uint64_t seed) : backend_(backend), seed_(seed) {}

  // Uniform with variance 1 / in_dim.
  Matrix matrix(const StoredMatrix& stored, bool is_table) {
    stream_ = mix64(seed_ ^ mix64(n_tensors_++));
    if (!stored.groups) return float_matrix(stored.dtype, stored.out_dim, stored.in_dim, is_table);
    const DType codes = stored.groups->bits == 4 ? DType::U4 : DType::U8;
    return quantized_matrix(codes, stored.out_dim, stored.in_dim, stored.groups->group, is_table);
  }

  DeviceTensor vector(int64_t n, float value, bool is_f32) {
    HostTensor tensor(DType::F32, {n});
    std::fill_n(tensor.as<float>(), n, value);
    return is_f32 ? backend_.upload(tensor) : backend_.upload_vector(tensor);
  }

 private:
  static constexpr size_t kValues = 4096;

  static double bound(int64_t in_dim) { return std::sqrt(3.0 / static_cast<double>(in_dim)); }

  template <typename Host>
  Matrix pack(const Host& host, bool is_table) const {
    return is_table ? backend_.pack_table(host) : backend_.pack_matrix(host);
  }

  // In steps of 1 / 2048 of the range.
  Matrix float_matrix(DType dtype, int64_t out_dim, int64_t in_dim, bool is_table) {
    HostTensor tensor(dtype, {out_dim, in_dim});
    visit_float(dtype, [&]<typename T>() {
      std::array<T, kValues> values;
      for (size_t i = 0; i < kValues; ++i) {
        const double unit = (2 * static_cast<double>(i) + 1) / kValues - 1;
        values[i] = from_f32<T>(static_cast<float>(unit * bound(in_dim)));
      }
      fill(tensor.as<T>(), out_dim * in_dim, values);
    });
    return pack(tensor.view(), is_table);
  }

  Matrix quantized_matrix(DType codes, int64_t out_dim, int64_t in_dim, int64_t group,
                          bool is_table) {
    HostQuantizedMatrix matrix = make_quantized_matrix(codes, DType::F16, out_dim, in_dim, group,
                                                       /*asymmetric=*/false);
    // As a symmetric quantizer has it: the lowest code, which has no opposite, is not there. With
    // it, the codes of a row would have a mean, which blocks without norms before them amplify
    // until F16 overflows.
    const auto symmetric = [](size_t code, size_t zero) { return code == 0 ? zero : code; };
    std::array<uint8_t, kValues> bytes;
    for (size_t i = 0; i < kValues; ++i) {
      const size_t byte = i % 256;
      bytes[i] = static_cast<uint8_t>(codes == DType::U8
                                          ? symmetric(byte, 128)
                                          : symmetric(byte % 16, 8) | symmetric(byte / 16, 8) << 4);
    }
    const Tensor& stored = matrix.codes.view();
    fill(static_cast<uint8_t*>(stored.data), stored.n_bytes(), bytes);
    // The mean square of codes -(zero - 1) ... zero - 1, and another 0, is (zero - 1)(2 zero - 1)
    // / 6.
    const double zero = matrix.view().zero_code();
    const f16 scale =
        to_f16(static_cast<float>(bound(in_dim) / std::sqrt((zero - 1) * (2 * zero - 1) / 2)));
    std::fill_n(matrix.scales.as<f16>(), matrix.scales.view().n_elements(), scale);
    return pack(matrix.view(), is_table);
  }

  template <typename T>
  void fill(T* out, int64_t n, const std::array<T, kValues>& values) const {
    const int64_t n_groups = ceil_div(n, 4);  // four weights from one hash
    const auto n_threads =
        std::max<int64_t>(1, std::min<int64_t>(usable_cores(), n_groups / 65536));
    const auto fill_groups = [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) {
        uint64_t bits = mix64(stream_ + static_cast<uint64_t>(group));
        for (int64_t i = 4 * group; i < std::min(4 * group + 4, n); ++i, bits >>= 16) {
          out[i] = values[bits % kValues];
        }
      }
    };
    parallel_for(narrow<int>(n_threads), n_threads, [&](int64_t t) {
      fill_groups(n_groups * t / n_threads, n_groups * (t + 1) / n_threads);
    });
  }

  Backend& backend_;
  uint64_t seed_, n_tensors_ = 0, stream_ = 0;
};

// A matrix of such a model. As `quantize` has it, the embedding and the output layer are int8 where
// other matrices are int4, and routers are floats.
StoredMatrix stored_matrix(const SyntheticType& type, const WeightInfo& weight) {
  StoredMatrix matrix{.out_dim = weight.shape[0], .in_dim = weight.shape[1], .dtype = type.dtype};
  if (is_float(type.dtype)) return matrix;
  if (weight.is_router()) {
    matrix.dtype = DType::F16;
    return matrix;
  }
  const bool has_groups =
      type.dtype == DType::U4 && !weight.is_of_tokens() && matrix.in_dim % type.group == 0;
  matrix.groups = {.bits = has_groups ? 4 : 8,
                   .group = has_groups ? type.group : matrix.in_dim,
                   .has_mins = false,
                   .scales = DType::F16};
  return matrix;
}

Weights make_weights(const ModelSpec& spec, const SyntheticType& type, WeightMaker& make,
                     int rank) {
  Weights weights = empty_weights(spec);
  for_each_weight(spec, [&](const WeightInfo& weight) {
    if (!weight.is_matrix()) {
      if (weight.is_of_first_rank() && rank > 0) return;
      vector_of(weights, weight) =
          make.vector(weight.shape[0], weight.is_bias ? 0.01f : 1.0f, weight.is_f32());
      return;
    }
    matrix_of(weights, weight) = make.matrix(stored_matrix(type, weight), weight.is_table);
  });
  return weights;
}

std::string type_text(const SyntheticType& type) {
  if (type.dtype == DType::U4) return cat("int4 g", type.group);
  return type.dtype == DType::U8 ? "int8" : std::string(info(type.dtype).name);
}

// "llama-2-7b" of "llama-2-7b:int4"
std::string shape_name(const std::string& text) { return text.substr(0, text.find(':')); }

// "f16", "int8", "int4:128"
SyntheticType parse_type(const std::string& text) {
  if (text == "f16") return {DType::F16, 0};
  if (text == "bf16") return {DType::BF16, 0};
  if (text == "f32") return {DType::F32, 0};
  if (text == "int8") return {DType::U8, 0};
  for (const int64_t group : {32, 64, 128}) {
    if (text == cat("int4:", group) || (group == 64 && text == "int4")) return {DType::U4, group};
  }
  throw Error(ErrorKind::Usage,
              cat("no synthetic weight type \"", shortened(text),
                  "\" (there are: f16, bf16, f32, int8, int4, int4:32, int4:64, int4:128)"));
}

// The type that stands behind a shape's name.
SyntheticType type_of(const std::string& text) {
  const std::string name = shape_name(text);
  return parse_type(name.size() == text.size() ? "f16" : text.substr(name.size() + 1));
}

// How such a model is cut; null: it is not.
std::shared_ptr<const Shards> shards_of(const ModelSpec& spec, const SyntheticType& type,
                                        int n_ranks) {
  if (n_ranks == 1) return nullptr;
  return std::make_shared<const Shards>(spec, n_ranks, [&](const WeightInfo& weight) -> int64_t {
    const StoredMatrix stored = stored_matrix(type, weight);
    if (!stored.groups) return 1;
    return stored.groups->group == stored.in_dim ? 1 : stored.groups->group;
  });
}

// On every card, if the ranks are cards, and on the host for what is on the way there.
void require_memory(const ModelSpec& spec, const SyntheticType& type, Backend& backend,
                    const Shards* shards, const SessionMemory& session) {
  const auto memory_of = [&](int i, const Backend& own, const SessionMemory& in_session) {
    return synthetic_memory(shards != nullptr ? shards->spec(backend.rank() + i) : spec, type, own,
                            in_session);
  };
  int64_t largest = 0;  // as it is made
  for_each_weight(spec, [&](const WeightInfo& weight) {
    if (!weight.is_matrix()) return;
    largest = std::max(largest, stored_bytes(stored_matrix(type, weight)));
  });
  if (backend.free_device_bytes()) {
    on_all_ranks(backend, [&](int i, Backend& own) {
      const MemoryNeeded needed = memory_of(i, own, session);
      require_card_memory(own.free_device_bytes().value(), needed.weights, needed.session);
    });
    return require_host_memory(2 * largest, "making the model");
  }
  MemoryNeeded needed = memory_of(0, backend, session);
  for (int i = 1; i < backend.n_ranks_here(); ++i) {
    needed.weights.bytes =
        checked_add(needed.weights.bytes, memory_of(i, backend, {}).weights.bytes);
  }
  const int64_t in_session = checked_add(needed.session.kv_bytes, needed.session.activation_bytes);
  // A matrix as it is made is gone when the session comes.
  const int64_t n_bytes = checked_add(needed.weights.bytes, std::max(largest, in_session));
  // Other processes of the run take as much.
  require_host_memory(checked_mul(int64_t{backend.n_processes_of_host()}, n_bytes), "the model");
}

}  // namespace

MemoryNeeded synthetic_memory(const ModelSpec& spec, const SyntheticType& type,
                              const Backend& backend, const SessionMemory& session) {
  return memory_needed(spec, backend, session,
                       [&](const WeightInfo& weight) { return stored_matrix(type, weight); });
}

Model make_synthetic_model(const ModelSpec& spec, const SyntheticType& type, Backend& backend,
                           uint64_t seed, const SessionMemory& session) {
  const std::shared_ptr<const Shards> shards = shards_of(spec, type, backend.n_ranks());
  require_memory(spec, type, backend, shards.get(), session);
  std::vector<Model> models(static_cast<size_t>(backend.n_ranks_here()));
  on_all_ranks(backend, [&](int i, Backend& own) {
    Model& model = models[static_cast<size_t>(i)];
    model.spec = shards ? shards->spec(backend.rank() + i) : spec;
    // The same seed for all: the embedding and the norms are the same on every rank.
    WeightMaker make(own, seed);
    model.weights = make_weights(model.spec, type, make, own.rank());
    index_experts(model.weights, own);
  });
  Model model = std::move(models.front());
  for (size_t i = 1; i < models.size(); ++i) model.other_ranks.push_back(std::move(models[i]));
  for_each_weight(spec, [&](const WeightInfo& weight) {  // of the whole model, each once
    const int64_t n = weight.shape.n_elements();
    model.n_params += n;
    model.file_bytes +=
        weight.is_matrix() ? stored_bytes(stored_matrix(type, weight)) : bytes_of(DType::F32, n);
  });
  model.name = "synthetic";
  model.weight_types = type_text(type);
  describe_model(model);
  return model;
}

ModelSpec synthetic_spec(const std::string& text, int64_t min_seq_len) {
  const std::string name = shape_name(text);
  const auto shape = std::find_if(std::begin(kKnownShapes), std::end(kKnownShapes),
                                  [&](const KnownShape& known) { return name == known.name; });
  std::string list;
  for (const std::string& known : synthetic_names()) list += (list.empty() ? "" : ", ") + known;
  MINFER_REQUIRE(Usage, shape != std::end(kKnownShapes), "no synthetic model \"", shortened(name),
                 "\" (there are: ", list, ")");
  ModelSpec spec = to_spec(*shape);
  spec.trained_seq_len = std::max(spec.trained_seq_len, min_seq_len);
  return spec;
}

OpenedModel open_synthetic(const std::string& text, int n_ranks, int64_t min_seq_len) {
  OpenedModel opened;
  opened.model.spec = synthetic_spec(text, min_seq_len);
  opened.shards = shards_of(opened.model.spec, type_of(text), n_ranks);
  return opened;
}

Model make_synthetic_model(const std::string& text, Backend& backend, uint64_t seed,
                           int64_t min_seq_len, const SessionMemory& session) {
  const ModelSpec spec = synthetic_spec(text, min_seq_len);
  Model model = make_synthetic_model(spec, type_of(text), backend, seed, session);
  model.name = shape_name(text);
  return model;
}

std::vector<std::string> synthetic_names() {
  std::vector<std::string> names;
  for (const KnownShape& shape : kKnownShapes) names.emplace_back(shape.name);
  return names;
}

}  // namespace minfer
