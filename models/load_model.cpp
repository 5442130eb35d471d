#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <map>

#include "models/describe_model.h"
#include "models/host_memory.h"
#include "models/model.h"
#include "models/source_error.h"
#include "models/weight_layout.h"
#include "models/weight_names.h"

namespace minfer {
namespace {

// On a card, where there is one, and on the host for what is on the way there.
void require_memory(const std::vector<WeightBinding>& bindings, const Backend& backend) {
  int64_t needed = 0, on_card = 0, as_int4 = 0, largest_float = 0, largest_quantized = 0;
  for (const WeightBinding& binding : bindings) {
    const int64_t n_bytes = weight_memory_bytes(*binding.entry);
    needed = checked_add(needed, n_bytes);
    on_card = checked_add(on_card, card_memory_bytes(*binding.entry));
    as_int4 += binding.entry->shape.n_elements() * 9 / 16;
    int64_t& largest = binding.entry->quant ? largest_quantized : largest_float;
    largest = std::max(largest, n_bytes);
  }
  // On the way are the two weights of read_weights and another layout of a tensor.
  const int64_t on_the_way = 2 * (largest_float + largest_quantized) + largest_float;
  if (!backend.free_device_bytes()) {
    return require_host_memory(checked_add(needed, on_the_way), "loading the model");
  }
  require_backend_memory(backend, on_card, "loading the model",
                         cat("`minfer quantize` brings it to ", double(as_int4 / 10'000'000) / 100,
                             " GB, --device cpu takes the host's memory"));
  require_host_memory(on_the_way, "loading the model");
}

void require_finite(const TensorEntry& entry, const Tensor& x, std::string_view part) {
  const int64_t index = first_non_finite(x);
  MINFER_REQUIRE(Input, index < 0, "tensor ", shortened(entry.name), ": ", part, " ", index,
                 " is not a finite number");
}

// One tensor of a checkpoint at a time, in memory that serves for the next one too.
struct Weight {
  HostTensor tensor;
  HostQuantizedMatrix matrix;  // of an entry with `quant`

  void read_finite(const TensorSource& source, const TensorEntry& entry) {
    if (!entry.quant) {
      source.read_into(tensor, entry);
      return require_finite(entry, tensor, "element");
    }
    source.read_quantized_into(matrix, entry);
    require_finite(entry, matrix.scales, "scale");
    if (matrix.mins.view()) require_finite(entry, matrix.mins, "minimum");
  }
};

// Of a quantized checkpoint: rows in their final order, as Hugging Face's are.
void place(const WeightBinding& binding, const HostQuantizedMatrix& matrix, Backend& backend) {
  int64_t begin = 0;
  for (const WeightPart& part : binding.parts) {
    MINFER_REQUIRE(Input, part.matrix != nullptr && part.rope_heads == 0 && !binding.transposed,
                   "tensor ", shortened(binding.entry->name),
                   ": is quantized, expected a float type");
    *part.matrix = backend.pack_matrix(matrix.view().rows(begin, part.n_rows));
    begin += part.n_rows;
  }
}

void place(const WeightBinding& binding, Tensor tensor, const ModelConfig& config,
           Backend& backend) {
  HostTensor other;
  if (binding.transposed) tensor = other = transposed(tensor);
  if (binding.parts.front().vector != nullptr) tensor = other = to_f32_tensor(tensor);
  int64_t begin = 0;
  for (const WeightPart& part : binding.parts) {
    Tensor rows = tensor.rows(begin, part.n_rows);
    begin += part.n_rows;
    HostTensor halves;
    if (part.rope_heads > 0) {
      halves = rope_pairs_to_halves(rows, part.rope_heads, config.rotary_dim);
      rows = halves;
    }
    if (part.matrix != nullptr) {
      *part.matrix = backend.pack_matrix(rows);
    } else {
      *part.vector = backend.upload_vector(rows);
    }
  }
}

// One tensor is read while the one before is packed.
void read_weights(const TensorSource& source, const std::vector<WeightBinding>& bindings,
                  const ModelConfig& config, Backend& backend, const LoadOptions& options) {
  int64_t total = 0, done = 0;
  for (const WeightBinding& binding : bindings) {
    total += static_cast<int64_t>(binding.entry->file_bytes);
  }
  Weight weights[2];  // of even and of odd bindings
  const auto start_reading = [&](size_t i) {
    return std::async(std::launch::async,
                      [&source, &to = weights[i % 2], entry = bindings[i].entry] {
                        to.read_finite(source, *entry);
                      });
  };
  std::future<void> next = start_reading(0);
  for (size_t i = 0; i < bindings.size(); ++i) {
    next.get();
    if (i + 1 < bindings.size()) next = start_reading(i + 1);
    const Weight& weight = weights[i % 2];
    if (bindings[i].entry->quant) {
      place(bindings[i], weight.matrix, backend);
    } else {
      place(bindings[i], weight.tensor, config, backend);
    }
    done += static_cast<int64_t>(bindings[i].entry->file_bytes);
    if (options.progress) options.progress(done, total);
  }
}

std::vector<double> read_rope_divisors(const TensorSource& source, const TensorEntry& entry) {
  Weight weight;
  weight.read_finite(source, entry);
  const HostTensor tensor = to_f32_tensor(weight.tensor);
  std::vector<double> divisors;
  for (int64_t i = 0; i < tensor.view().n_elements(); ++i) {
    const float divisor = tensor.at(i);
    MINFER_REQUIRE(Input, divisor > 0, "tensor ", entry.name, ": element ", i, " is ", divisor,
                   ", expected more than 0");
    divisors.push_back(double{divisor});
  }
  return divisors;
}

std::unique_ptr<Tokenizer> load_own_tokenizer(const TensorSource& source) {
  if (source.key_style == KeyStyle::Gguf) {
    return source.metadata.has("tokenizer.ggml.model") ? make_gguf_tokenizer(source.metadata)
                                                       : nullptr;
  }
  return has_tokenizer(source.path) ? load_tokenizer(source.path) : nullptr;
}

void require_fitting_tokenizer(const Model& model) {
  if (model.tokenizer == nullptr) return;
  MINFER_REQUIRE(Input, model.tokenizer->n_tokens() <= model.config.vocab_size,
                 "the tokenizer has ", model.tokenizer->n_tokens(), " tokens, the embedding ",
                 model.config.vocab_size, " rows");
}

// "Q4_1": the type that most matrix elements of the file have.
std::string most_common_type(const std::vector<WeightBinding>& bindings) {
  std::map<DType, int64_t> n_elements;
  for (const WeightBinding& binding : bindings) {
    n_elements[binding.entry->dtype] += binding.entry->shape.n_elements();
  }
  const auto most = std::max_element(n_elements.begin(), n_elements.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  return std::string(info(most->first).name);
}

void warn(Model& model, std::string_view what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  constexpr size_t kNamed = 8;
  std::string line = cat(names.size(), " ", what, ":");
  for (size_t i = 0; i < names.size() && i < kNamed; ++i) line += " " + shortened(names[i]);
  if (names.size() > kNamed) line += " ...";
  model.warnings.push_back(std::move(line));
}

}  // namespace

DType float_type_of(const TensorSource& source) {
  int64_t n_bf16 = 0, n_other = 0;
  for (const TensorEntry& entry : source.tensors) {
    if (!is_float(entry.dtype)) continue;
    (entry.dtype == DType::BF16 ? n_bf16 : n_other) += entry.shape.n_elements();
  }
  return n_bf16 > n_other ? DType::BF16 : DType::F16;
}

ModelConfig check_model(const TensorSource& source) try {
  const ModelConfig config = read_model_config(source);
  Weights weights;
  std::vector<std::string> surplus;
  bind_weights(source, config, weights, surplus);
  find_rope_divisors(source, config);
  return config;
} catch (const Error& e) {
  throw in_source(source, e);
}

Model load_model(const TensorSource& source, Backend& backend, const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Model model;
  try {
    model.config = read_model_config(source);
    std::vector<std::string> surplus;
    const auto bindings = bind_weights(source, model.config, model.weights, surplus);
    model.warnings = source.warnings;
    warn(model, "tensors that the model does not use", surplus);
    warn(model, "keys that minfer does not know", unknown_config_keys(source, model.config));
    const TensorEntry* divisors = find_rope_divisors(source, model.config);
    model.tokenizer = options.tokenizer_path.empty() ? load_own_tokenizer(source)
                                                     : load_tokenizer(options.tokenizer_path);
    require_fitting_tokenizer(model);
    require_memory(bindings, backend);

    if (divisors != nullptr)
      model.config.rope_freq_divisors = read_rope_divisors(source, *divisors);
    read_weights(source, bindings, model.config, backend, options);
    source.check_unchanged();

    model.weight_types = most_common_type(bindings);
    for (const WeightBinding& binding : bindings) {
      model.n_params += binding.entry->shape.n_elements();
      model.file_bytes += static_cast<int64_t>(binding.entry->file_bytes);
    }
  } catch (const Error& e) {
    throw in_source(source, e);
  }
  const auto path = std::filesystem::path(source.path).lexically_normal();
  model.name = (path.has_filename() ? path : path.parent_path()).filename().string();
  describe_model(model);
  model.load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

Model load_model(const std::string& path, Backend& backend, const LoadOptions& options) {
  return load_model(*open_source(path), backend, options);
}

}  // namespace minfer
