#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>

#include "kernels/base/usable_cores.h"
#include "kernels/comm/rank_group.h"
#include "models/describe_model.h"
#include "models/host_memory.h"
#include "models/memory_needed.h"
#include "models/rank_load.h"
#include "models/source_error.h"
#include "models/weight_layout.h"
#include "models/weight_slice.h"

namespace minfer {
namespace {

// Host memory that read_weights takes with so many slots, each as large as the largest tensor and
// the largest matrix of groups that it gets, and for another layout of a tensor.
int64_t slot_bytes(const std::vector<WeightBinding>& bindings, size_t n_slots) {
  std::vector<int64_t> floats(n_slots), groups(n_slots);
  int64_t other_layout = 0;
  for (size_t i = 0; i < bindings.size(); ++i) {
    const TensorEntry& entry = *bindings[i].entry;
    const int64_t n_bytes = weight_memory_bytes(entry);
    int64_t& largest = (entry.quant ? groups : floats)[i % n_slots];
    largest = std::max(largest, n_bytes);
    if (!entry.quant) other_layout = std::max(other_layout, n_bytes);
  }
  int64_t sum = other_layout;
  for (const auto& sizes : {floats, groups}) {
    for (const int64_t n_bytes : sizes) sum = checked_add(sum, n_bytes);
  }
  return sum;
}

// As many slots as threads are worth, two at least: more only as memory allows.
size_t count_slots(const std::vector<WeightBinding>& bindings, int64_t free_bytes) {
  constexpr int64_t kMostBytes = int64_t{3} << 29;  // eight of a 7B model in F16
  auto n = static_cast<size_t>(std::clamp(usable_cores(), 2, 8));
  while (n > 2 && slot_bytes(bindings, n) > std::min(kMostBytes, free_bytes)) --n;
  return n;
}

MemoryNeeded memory_of(const RankLoad& load, const Backend& backend, const SessionMemory& session) {
  return memory_needed(load.model.spec, backend, session,
                       [&](const WeightInfo& weight) { return load.stored(weight); });
}

using RankLoads = std::vector<std::unique_ptr<RankLoad>>;

// Of all ranks of this process together, which share the host's memory. `asked` is that of all of
// them.
MemoryNeeded host_memory_of(const RankLoads& loads, Backend& backend, const SessionMemory& asked) {
  MemoryNeeded needed = memory_of(*loads.front(), backend, asked);
  SessionMemory rows = asked;  // the rows of a pass, whose workspaces each rank has
  rows.kv_bytes = rows.activation_bytes = 0;
  for (size_t rank = 1; rank < loads.size(); ++rank) {
    const MemoryNeeded more =
        memory_of(*loads[rank], backend.ranks()->backend(static_cast<int>(rank)), rows);
    needed.weights.bytes = checked_add(needed.weights.bytes, more.weights.bytes);
    needed.session.activation_bytes =
        checked_add(needed.session.activation_bytes, more.session.activation_bytes);
  }
  return needed;
}

// On every card, if the ranks are cards, and on the host for what is on the way there. Returns the
// slots that read_weights of each rank may use.
size_t require_memory(const RankLoads& loads, Backend& backend, const SessionMemory& asked) {
  const std::vector<WeightBinding>& bindings = loads.front()->bindings;
  const auto n_ranks = static_cast<int64_t>(loads.size());
  if (!backend.free_device_bytes()) {
    MemoryNeeded needed = host_memory_of(loads, backend, asked);
    SessionMemory& session = needed.session;
    // Other processes of the run take as much of the host's memory.
    const int64_t available = available_host_bytes() / backend.n_processes_of_host();
    const int64_t left = available - needed.weights.bytes;
    const size_t n_slots = count_slots(bindings, left / n_ranks);
    const int64_t in_session = checked_add(session.kv_bytes, session.activation_bytes);
    // The slots are gone when the session comes.
    const int64_t more_in_slots = n_ranks * slot_bytes(bindings, n_slots) - in_session;
    session.activation_bytes =
        checked_add(session.activation_bytes, std::max<int64_t>(more_in_slots, 0));
    require_memory_of_model(available, needed.weights, session);
    return n_slots;
  }
  on_all_ranks(backend, [&](int rank, Backend& own) {
    const MemoryNeeded needed = memory_of(*loads[static_cast<size_t>(rank)], own, asked);
    require_card_memory(own.free_device_bytes().value(), needed.weights, needed.session);
  });
  const size_t n_slots = count_slots(bindings, available_host_bytes() / n_ranks);
  require_host_memory(n_ranks * slot_bytes(bindings, n_slots), "loading the model");
  return n_slots;
}

// x: the elements of the entry from `first` on.
void require_finite(const TensorEntry& entry, const Tensor& x, std::string_view part,
                    int64_t first = 0) {
  const int64_t index = first_non_finite(x);
  MINFER_REQUIRE(Input, index < 0, "tensor ", shortened(entry.name), ": ", part, " ", first + index,
                 " is not a finite number");
}

// One tensor of a checkpoint at a time, in memory that serves for the next one too.
struct Weight {
  HostTensor tensor;
  HostQuantizedMatrix matrix;  // of an entry with `quant`

  // `rows`: of the outermost dim, one range after the other; none: all.
  void read_finite(const TensorSource& source, const TensorEntry& entry,
                   const std::optional<std::vector<ShardRange>>& rows = {}) {
    if (rows) return read_rows(source, entry, *rows);
    if (!entry.quant) {
      source.read_into(tensor, entry);
      return require_finite(entry, tensor, "element");
    }
    source.read_quantized_into(matrix, entry);
    require_finite(entry, matrix.scales, "scale");
    if (matrix.mins.view()) require_finite(entry, matrix.mins, "minimum");
  }

 private:
  void read_rows(const TensorSource& source, const TensorEntry& entry,
                 std::span<const ShardRange> rows) {
    const int64_t row_elements = entry.shape.n_elements() / entry.shape[0];
    const auto read = [&](const ShardRange& range) {
      HostTensor part = source.read_rows(entry, range.begin, range.n);
      require_finite(entry, part, "element", range.begin * row_elements);
      return part;
    };
    if (rows.size() == 1) {  // most often, and without another copy
      tensor = read(rows.front());
      return;
    }
    Shape shape = entry.shape;
    shape.dims[0] = length_of(rows);
    tensor.reset(entry.dtype, shape);
    int64_t at = 0;
    for (const ShardRange& range : rows) {
      const HostTensor part = read(range);
      const Tensor to = tensor.view().rows(at, range.n);
      std::memcpy(to.data, part.view().data, static_cast<size_t>(to.n_bytes()));
      at += range.n;
    }
  }
};

// Cuts rows of a tensor or of a quantized matrix to what the rank has, into `cut`.
template <typename View, typename Host>
View cut_to_rank(const View& rows, const RankLoad& load, const WeightPart& part, Host& cut) {
  const auto ranges = load.slice(part);
  if (!ranges) return rows;
  const bool are_columns = part.weight.slice == SliceAxis::In;
  cut = are_columns ? take_columns(rows, *ranges) : take_rows(rows, *ranges);
  return cut.view();
}

int64_t rows_of_rank(const RankLoad& load, const WeightPart& part) {
  const auto ranges = load.slice(part);
  if (!ranges) return part.n_rows;
  return length_of(*ranges);
}

// Of a quantized checkpoint.
void place(const WeightBinding& binding, const HostQuantizedMatrix& matrix, const RankLoad& load,
           Backend& backend) {
  HostQuantizedMatrix blocks;
  if (binding.qkv_heads > 0) blocks = qkv_by_head_to_blocks(matrix.view(), binding.qkv_heads);
  const QuantizedMatrix all = binding.qkv_heads > 0 ? blocks.view() : matrix.view();
  int64_t begin = 0;
  for (const WeightPart& part : binding.parts) {
    MINFER_REQUIRE(Input, part.matrix != nullptr && !binding.transposed, "tensor ",
                   shortened(binding.entry->name), ": is quantized, expected a float type");
    HostQuantizedMatrix cut, halves;
    QuantizedMatrix rows = cut_to_rank(all.rows(begin, part.n_rows), load, part, cut);
    if (part.rope_heads > 0) {
      const int64_t head_dim = part.n_rows / part.rope_heads;
      halves = rope_pairs_to_halves(rows, rows.out_dim() / head_dim, part.rotary_dim);
      rows = halves.view();
    }
    *part.matrix = part.is_table ? backend.pack_table(rows) : backend.pack_matrix(rows);
    begin += part.n_rows;
  }
}

// is_cut: `tensor` has the rows of RankLoad::rows_alone.
void place(const WeightBinding& binding, Tensor tensor, bool is_cut, const RankLoad& load,
           Backend& backend) {
  HostTensor other;
  if (binding.transposed) tensor = other = transposed(tensor);
  if (binding.qkv_heads > 0) tensor = other = qkv_by_head_to_blocks(tensor, binding.qkv_heads);
  if (binding.parts.front().vector != nullptr) {
    tensor = other = to_f32_tensor(tensor);
    const float offset = binding.parts.front().offset;
    for (int64_t i = 0, n = tensor.n_elements(); i < n; ++i) other.as<float>()[i] += offset;
    tensor = tensor.reshaped({tensor.n_elements()});
  }
  int64_t begin = 0;
  for (const WeightPart& part : binding.parts) {
    HostTensor cut;
    Tensor rows;
    if (is_cut) {
      rows = tensor.rows(begin, rows_of_rank(load, part));
      begin += rows.shape[0];
    } else {
      rows = cut_to_rank(tensor.rows(begin, part.n_rows), load, part, cut);
      begin += part.n_rows;
    }
    HostTensor halves;
    if (part.rope_heads > 0) {
      const int64_t head_dim = part.n_rows / part.rope_heads;
      halves = rope_pairs_to_halves(rows, rows.shape[0] / head_dim, part.rotary_dim);
      rows = halves;
    }
    if (part.matrix != nullptr) {
      *part.matrix = part.is_table ? backend.pack_table(rows) : backend.pack_matrix(rows);
    } else if (part.weight.is_of_first_rank() && load.rank > 0) {
      continue;
    } else if (part.weight.is_f32()) {
      *part.vector = backend.upload(rows);
    } else {
      *part.vector = backend.upload_vector(rows);
    }
  }
}

// Weight i passes through slot i % n_slots: while it is packed, those after it are read and
// checked, each by a thread.
// Ends early if another rank has failed.
void read_weights(const TensorSource& source, const RankLoad& load, size_t n_slots,
                  Backend& backend, const LoadOptions& options,
                  const std::atomic<bool>& has_failed) {
  const std::vector<WeightBinding>& bindings = load.bindings;
  int64_t total = 0, done = 0;
  for (const WeightBinding& binding : bindings) {
    total += static_cast<int64_t>(binding.entry->file_bytes);
  }
  std::vector<Weight> slots(n_slots);
  std::vector<std::future<void>> reads(n_slots);  // gone before what they read into
  const auto start_reading = [&](size_t i) {
    if (i >= bindings.size()) return;
    // Deferred where the system starts no thread.
    reads[i % n_slots] =
        std::async(std::launch::async | std::launch::deferred,
                   [&source, &load, &to = slots[i % n_slots], &from = bindings[i]] {
                     to.read_finite(source, *from.entry, load.rows_alone(from));
                   });
  };
  for (size_t i = 0; i < n_slots; ++i) start_reading(i);
  for (size_t i = 0; i < bindings.size(); ++i) {
    if (has_failed) throw PeerStopped{};
    reads[i % n_slots].get();
    const Weight& weight = slots[i % n_slots];
    if (bindings[i].entry->quant) {
      place(bindings[i], weight.matrix, load, backend);
    } else {
      const bool is_cut = load.rows_alone(bindings[i]).has_value();
      place(bindings[i], weight.tensor, is_cut, load, backend);
    }
    start_reading(i + n_slots);
    done += static_cast<int64_t>(bindings[i].entry->file_bytes);
    if (options.progress && load.rank == 0) options.progress(done, total);
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

void warn_of_tokens_without_rows(Model& model) {
  if (model.tokenizer == nullptr) return;
  const int64_t n_tokens = model.tokenizer->n_tokens(), n_rows = model.spec.vocab_size;
  if (n_tokens <= n_rows) return;
  model.warnings.push_back(cat("the tokenizer has ", n_tokens, " tokens, the embedding ", n_rows,
                               " rows: ids from ", n_rows,
                               " on are never produced, and refused in a prompt"));
}

// Of a checkpoint whose maker has quantized the inputs of matrices too.
void warn_of_activations(Model& model, const TensorSource& source, const Backend& backend) {
  const std::string& scheme = source.input_activations;
  if (scheme.empty() || backend.activations() != Activations::Float) return;
  model.warnings.push_back(cat("the model was quantized for ", scheme,
                               " inputs of its matrices; this run has floats (--activations ",
                               scheme, " quantizes them)"));
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

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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

ModelSpec check_model(const TensorSource& source) try {
  const ModelSpec spec = read_model_spec(source);
  Weights weights;
  std::vector<std::string> surplus;
  bind_weights(source, spec, weights, surplus);
  find_rope_tensors(source, spec);
  return spec;
} catch (const Error& e) {
  throw in_source(source, e);
}

OpenedModel open_model(const TensorSource& source, const std::string& tokenizer_path) try {
  const auto start = std::chrono::steady_clock::now();
  OpenedModel opened;
  opened.source = &source;
  Model& model = opened.model;
  model.spec = read_model_spec(source);
  Weights weights;
  std::vector<std::string> surplus;
  bind_weights(source, model.spec, weights, surplus);
  model.warnings = source.warnings;
  model.warnings.insert(model.warnings.end(), model.spec.warnings.begin(),
                        model.spec.warnings.end());
  warn(model, "tensors that the model does not use", surplus);
  warn(model, "keys that minfer does not know", unknown_config_keys(source, model.spec));
  find_rope_tensors(source, model.spec);
  model.tokenizer =
      tokenizer_path.empty() ? load_own_tokenizer(source) : load_tokenizer(tokenizer_path);
  if (model.tokenizer != nullptr) {
    const std::vector<std::string>& told = model.tokenizer->warnings();
    model.warnings.insert(model.warnings.end(), told.begin(), told.end());
  }
  warn_of_tokens_without_rows(model);
  const auto path = std::filesystem::path(source.path).lexically_normal();
  model.name = (path.has_filename() ? path : path.parent_path()).filename().string();
  opened.seconds = seconds_since(start);
  return opened;
} catch (const Error& e) {
  throw in_source(source, e);
}

OpenedModel open_model(const std::string& path, const std::string& tokenizer_path) {
  std::unique_ptr<TensorSource> source = open_source(path);
  OpenedModel opened = open_model(*source, tokenizer_path);
  opened.owned_source = std::move(source);
  return opened;
}

Model load_weights(OpenedModel opened, Backend& backend, const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const TensorSource& source = *opened.source;
  Model model = std::move(opened.model);
  const int n_ranks = opened.shards ? opened.shards->n_ranks() : 1;
  MINFER_CHECK(n_ranks == backend.n_ranks(), n_ranks, " ranks on ", backend.n_ranks());
  try {
    RankLoads loads;
    for (int i = 0; i < backend.n_ranks_here(); ++i) {
      RankLoad& load = *loads.emplace_back(std::make_unique<RankLoad>());
      load.shards = opened.shards.get();
      load.rank = backend.rank() + i;
      load.model.spec = opened.shards ? opened.shards->spec(load.rank) : model.spec;
      bind(load, source, model.spec);
    }
    warn_of_activations(model, source, backend);
    const size_t n_slots = require_memory(loads, backend, options.session);
    for (const auto& [entry, divisors] : find_rope_tensors(source, model.spec)) {
      const std::vector<double> read = read_rope_divisors(source, *entry);
      for (const auto& load : loads) load->model.spec.ropes.front().*divisors = read;
    }
    std::atomic<bool> has_failed = false;
    on_all_ranks(backend, [&](int rank, Backend& own) {
      RankLoad& load = *loads[static_cast<size_t>(rank)];
      try {
        read_weights(source, load, n_slots, own, options, has_failed);
        index_experts(load.model.weights, own);
      } catch (...) {
        has_failed = true;
        throw;
      }
    });
    source.check_unchanged();

    const std::vector<WeightBinding>& bindings = loads.front()->bindings;
    model.weight_types = most_common_type(bindings);
    for (const WeightBinding& binding : bindings) {
      const WeightInfo& first = binding.parts.front().weight;
      const bool is_output = first.role == WeightRole::Output && first.is_matrix();
      if (model.spec.tied_output && is_output) continue;  // counted once
      model.n_params += binding.entry->shape.n_elements();
      model.file_bytes += static_cast<int64_t>(binding.entry->file_bytes);
    }
    model.spec = std::move(loads.front()->model.spec);
    model.weights = std::move(loads.front()->model.weights);
    for (size_t rank = 1; rank < loads.size(); ++rank) {
      model.other_ranks.push_back(std::move(loads[rank]->model));
    }
  } catch (const Error& e) {
    throw in_source(source, e);
  }
  describe_model(model);
  model.load_seconds = opened.seconds + seconds_since(start);
  return model;
}

namespace {

Model load_opened(OpenedModel opened, Backend& backend, const LoadOptions& options) {
  cut_for_ranks(opened, backend.n_ranks());
  return load_weights(std::move(opened), backend, options);
}

}  // namespace

Model load_model(const TensorSource& source, Backend& backend, const LoadOptions& options) {
  return load_opened(open_model(source, options.tokenizer_path), backend, options);
}

Model load_model(const std::string& path, Backend& backend, const LoadOptions& options) {
  return load_opened(open_model(path, options.tokenizer_path), backend, options);
}

}  // namespace minfer
