#include "tools/inspection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/executor.h"
#include "kernels/base/bytes_text.h"
#include "models/host_memory.h"
#include "models/rank_load.h"
#include "tools/json_text.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

double bits_per_weight(uint64_t bytes, int64_t n_params) {
  return n_params == 0 ? 0 : 8.0 * double(bytes) / double(n_params);
}

std::string architecture_of(const TensorSource& source) {
  const Metadata& metadata = source.metadata;
  for (const char* key : {"general.architecture", "model_type"}) {
    if (metadata.has(key)) return shortened(metadata.text(key));
  }
  return "unknown";
}

// "in layers 3, 7, 11": those of which `what` says the same, one line for each text.
std::string listed_layers(const ModelSpec& spec, const char* heading,
                          const std::function<std::optional<std::string>(const LayerSpec&)>& what) {
  std::map<std::string, std::vector<int64_t>> layers;
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    if (const auto said = what(spec.layer(i))) layers[*said].push_back(i);
  }
  std::string text;
  for (const auto& [of_these, numbers] : layers) {
    const bool is_all = std::ssize(numbers) == spec.n_layers();
    text += is_all ? fmt::format("{}{}in all layers\n", heading, of_these)
                   : fmt::format("{}{}in layers {}\n", heading, of_these, fmt::join(numbers, ", "));
  }
  return text;
}

std::string rope_text(const RopeSpec& rope, int64_t head_dim) {
  std::string text =
      fmt::format("rope           theta {}, scaling {}", rope.theta, scaling_name(rope.scaling));
  switch (rope.scaling) {
    case RopeScaling::None:
      break;
    case RopeScaling::Linear:
      text += fmt::format(" by {}", rope.factor);
      break;
    case RopeScaling::Llama3:
    case RopeScaling::Yarn:
      text += fmt::format(" by {} of {} tokens", rope.factor, rope.original_seq_len);
      break;
    case RopeScaling::Dynamic:
      text += fmt::format(" by up to {} in sessions of more than {} tokens", rope.factor,
                          rope.original_seq_len);
      break;
    case RopeScaling::LongRope:
      text += fmt::format(", long in sessions of more than {} tokens", rope.original_seq_len);
      break;
  }
  if (rope.table_scale != 1) {
    text += fmt::format(", cosines and sines times {:.4g}", rope.table_scale);
  }
  if (rope.rotary_dim != head_dim) {
    text += fmt::format(", {} of {} elements rotate", rope.rotary_dim, head_dim);
  }
  return text + '\n';
}

std::string spec_text(const ModelSpec& spec) {
  const LayerSpec& layer = spec.layer(0);
  std::string text = fmt::format(
      "layers         {}\ndim            {}\nffn dim        {}\nheads          {} ({} for keys and "
      "values), {} each\nvocabulary     {}{}\ntrained on     {} tokens\n",
      spec.n_layers(), spec.dim, layer.ffn_dim, layer.n_heads, layer.n_kv_heads, layer.head_dim,
      spec.vocab_size, spec.tied_output ? ", output tied to the embedding" : "",
      spec.trained_seq_len);
  using Said = std::optional<std::string>;
  text += listed_layers(spec, "experts        ", [](const LayerSpec& each) {
    if (!each.has_experts()) return Said();
    std::string said =
        cat(each.n_active_experts, " of ", each.n_experts, ", ffn dim ", each.ffn_dim);
    if (each.shared_ffn_dim > 0) said += cat(", and a shared one, ffn dim ", each.shared_ffn_dim);
    if (each.swiglu_limit > 0) said += cat(", gates clamped to ", each.swiglu_limit);
    return Said(said + ' ');
  });
  for (const RopeSpec& rope : spec.ropes) text += rope_text(rope, layer.head_dim);
  text += listed_layers(spec, "no rotation    ", [&](const LayerSpec& each) {
    return each.rope < 0 && !spec.ropes.empty() ? Said("") : std::nullopt;
  });
  text += listed_layers(spec, "window         ", [](const LayerSpec& each) {
    return each.window > 0 ? Said(cat(each.window, " tokens ")) : std::nullopt;
  });
  text += listed_layers(spec, "sinks          ", [](const LayerSpec& each) {
    return each.attn_sinks ? Said("") : std::nullopt;
  });
  return text;
}

Json spec_json(const ModelSpec& spec) {
  const LayerSpec& layer = spec.layer(0);
  const RopeSpec rope = spec.ropes.empty() ? RopeSpec() : spec.ropes.front();
  Json layers_without_rope = Json::array(), windows = Json::array();
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    if (spec.layer(i).rope < 0) layers_without_rope.push_back(i);
    windows.push_back(spec.layer(i).window);
  }
  return {{"n_layers", spec.n_layers()},
          {"dim", spec.dim},
          {"ffn_dim", layer.ffn_dim},
          {"n_heads", layer.n_heads},
          {"n_kv_heads", layer.n_kv_heads},
          {"head_dim", layer.head_dim},
          {"vocab_size", spec.vocab_size},
          {"trained_seq_len", spec.trained_seq_len},
          {"norm_eps", layer.norm_eps},
          {"tied_output", spec.tied_output},
          {"rope_theta", rope.theta},
          {"rotary_dim", rope.rotary_dim},
          {"rope_scaling", scaling_name(rope.scaling)},
          {"rope_factor", rope.factor},
          {"rope_table_scale", rope.table_scale},
          {"layers_without_rope", layers_without_rope},
          {"windows", windows},
          {"n_experts", layer.n_experts},
          {"n_active_experts", layer.n_active_experts},
          {"shared_ffn_dim", layer.shared_ffn_dim}};
}

std::string codes_text(const GroupFormat& format, const TensorEntry& entry) {
  const bool one_a_row = entry.quant && format.group == entry.shape.last();
  return fmt::format("{}-bit codes{}, {}{} scales", format.bits,
                     format.table == CodeTable::None ? "" : " of a table",
                     one_a_row ? "one group a row, " : fmt::format("groups of {}, ", format.group),
                     format.products               ? "int8 x f16"
                     : format.scales == DType::F16 ? "f16"
                                                   : "f32");
}

// Empty where the file has no groups.
std::string kept_text(const TensorEntry& entry) {
  if (is_float(entry.dtype)) return "";
  const std::optional<GroupFormat> format = kept_groups(entry);
  if (!format) return "f32";
  return codes_text(*format, entry) + (format->has_mins ? " and mins" : "");
}

// A card's mins are F32 whatever the scales are.
std::string card_kept_text(const TensorEntry& entry, DType compute_dtype) {
  const std::optional<GroupFormat> format = card_kept_groups(entry);
  if (!format) return compute_dtype == DType::BF16 ? "bf16" : "f16";
  const char* const mins = !format->has_mins              ? ""
                           : format->scales == DType::F16 ? ", f32 mins"
                                                          : " and mins";
  return codes_text(*format, entry) + mins;
}

// Of the positions that are in the cache at a time, with passes of at most `chunk` rows.
int64_t f16_cache_bytes(const ModelSpec& spec, int64_t ctx, int64_t chunk) {
  constexpr int64_t kKeysAndValues = 2, kF16Bytes = 2;
  const int64_t pages = pages_of_sequence(spec, ctx, std::min(chunk, ctx));
  int64_t width = 0;
  for (const LayerSpec& layer : spec.layers) width += layer.kv_dim();
  return checked_mul(std::min(ctx, pages * kPagePositions), kKeysAndValues * kF16Bytes * width);
}

void check_values(const TensorSource& source, const TensorEntry& entry) {
  const auto require_finite = [&](const float* x, int64_t begin, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      MINFER_REQUIRE(Input, std::isfinite(x[i]), shortened(source.path, 200), ": tensor ",
                     shortened(entry.name), ": element ", begin + i, " is ", x[i], ", not finite");
    }
  };
  if (!entry.quant) {
    const HostTensor values = to_f32_tensor(source.read(entry));
    return require_finite(values.as<const float>(), 0, values.view().n_elements());
  }
  const HostQuantizedMatrix matrix = source.read_quantized(entry);
  std::vector<float> row(static_cast<size_t>(entry.shape.last()));
  for (int64_t i = 0; i < entry.shape[0]; ++i) {
    dequantize_row(row.data(), matrix.view(), i);
    require_finite(row.data(), i * entry.shape.last(), entry.shape.last());
  }
}

}  // namespace

Inspection inspect(const TensorSource& source, int64_t ctx, int n_ranks) {
  Inspection result;
  result.path = source.path;
  result.format = source.format;
  result.architecture = architecture_of(source);
  result.warnings = source.warnings;
  result.tokenizer = inspect_tokenizer(source);
  result.input_activations = source.input_activations;
  constexpr size_t kNamed = 8;
  size_t n_named = 0;
  for (const auto& [name, reason] : source.unusable) {
    result.warnings.push_back(cat("tensor ", shortened(name, 200), ": ", reason));
    if (++n_named == kNamed) break;
  }
  if (source.unusable.size() > kNamed) {
    result.warnings.push_back(
        cat(source.unusable.size() - kNamed, " more tensors that cannot be read"));
  }
  const DType compute_dtype = float_type_of(source);
  for (const TensorEntry& entry : source.tensors) {
    Inspection::TypeCount& type = result.types[type_text(entry)];
    ++type.n_tensors;
    type.n_params += entry.shape.n_elements();
    type.file_bytes += entry.file_bytes;
    type.kept = kept_text(entry);
    const int64_t card_bytes = card_memory_bytes(entry);
    type.card_kept = card_kept_text(entry, compute_dtype);
    type.card_bytes += card_bytes;
    ++result.n_tensors;
    result.n_params += entry.shape.n_elements();
    result.file_bytes += entry.file_bytes;
    result.weight_memory_bytes += weight_memory_bytes(entry);
    result.card_weight_bytes += card_bytes;
  }
  try {
    result.spec = check_model(source);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Input) throw;
    result.refusal = e.what();
    return result;
  }
  const ModelSpec& spec = *result.spec;
  result.warnings.insert(result.warnings.end(), spec.warnings.begin(), spec.warnings.end());
  result.ctx = ctx > 0 ? ctx : spec.trained_seq_len;
  result.kv_bytes = f16_cache_bytes(spec, result.ctx, kHostChunk);
  result.card_kv_bytes = f16_cache_bytes(spec, result.ctx, kCardChunk);
  if (n_ranks > 1) {
    OpenedModel opened;
    opened.source = &source;
    opened.model.spec = spec;
    cut_for_ranks(opened, n_ranks);
    for (int rank = 0; rank < n_ranks; ++rank) {
      result.ranks.push_back(
          {.weight_bytes = card_weight_bytes(source, spec, *opened.shards, rank),
           .kv_bytes = f16_cache_bytes(opened.shards->spec(rank), result.ctx, kCardChunk)});
    }
  }
  return result;
}

std::string to_text(const Inspection& result, const TensorSource& source, bool list_tensors) {
  std::string text = fmt::format("file           {}\nformat         {}\narchitecture   {}\n",
                                 shortened(result.path, 500), result.format, result.architecture);
  if (result.spec) text += spec_text(*result.spec);
  text += to_text(result.tokenizer);
  text += fmt::format("parameters     {}\ntensors        {}, {} ({:.2f} bits per weight)\n",
                      result.n_params, result.n_tensors, bytes_text(int64_t(result.file_bytes)),
                      bits_per_weight(result.file_bytes, result.n_params));
  for (const auto& [name, type] : result.types) {
    text += fmt::format("  {:<20} {:>5} tensors {:>14} parameters {:>12}{}\n", name, type.n_tensors,
                        type.n_params, bytes_text(int64_t(type.file_bytes)),
                        type.kept.empty() ? "" : ", kept as " + type.kept);
    text += fmt::format("    on a card as {}, {}\n", type.card_kept,
                        bytes_text(int64_t(type.card_bytes)));
  }
  if (!result.input_activations.empty()) {
    text += fmt::format("activations    {} in the model's scheme (--activations {})\n",
                        result.input_activations, result.input_activations);
  }
  if (result.spec) {
    text += fmt::format("memory         {} weights + {} cache (f16, {} tokens) = {}\n",
                        bytes_text(int64_t(result.weight_memory_bytes)),
                        bytes_text(int64_t(result.kv_bytes)), result.ctx,
                        bytes_text(int64_t(result.weight_memory_bytes + result.kv_bytes)));
    text += fmt::format("on a card      {} weights + {} cache = {}\n",
                        bytes_text(result.card_weight_bytes), bytes_text(result.card_kv_bytes),
                        bytes_text(result.card_weight_bytes + result.card_kv_bytes));
    for (size_t rank = 0; rank < result.ranks.size(); ++rank) {
      const auto [weight_bytes, kv_bytes] = result.ranks[rank];
      text += fmt::format("card {} of {}    {} weights + {} cache = {}\n", rank,
                          result.ranks.size(), bytes_text(weight_bytes), bytes_text(kv_bytes),
                          bytes_text(weight_bytes + kv_bytes));
    }
  } else {
    text += "not supported  " + result.refusal + '\n';
  }
  for (const std::string& warning : result.warnings) text += "warning        " + warning + '\n';
  if (!list_tensors) return text;
  for (const TensorEntry& entry : source.tensors) {
    text += cat(type_text(entry), '\t', entry.shape, '\t', shortened(entry.name, 200), '\n');
  }
  return text;
}

std::string to_text(const Checked& checked) {
  std::string text = "check          every tensor is there, whole and finite";
  if (checked.n_files) text += cat("; ", *checked.n_files, " files agree with SHA256SUMS");
  if (checked.n_tensors > 0) text += cat("; ", checked.n_tensors, " tensors with their XXH3");
  return text;
}

std::string to_json(const Inspection& result, const TensorSource& source,
                    const std::optional<Checked>& checked) {
  Json types = Json::object();
  for (const auto& [name, type] : result.types) {
    types[name] = {{"n_tensors", type.n_tensors},
                   {"n_params", type.n_params},
                   {"bytes", type.file_bytes},
                   {"kept_as", type.kept.empty() ? Json(nullptr) : Json(type.kept)},
                   {"card_kept_as", type.card_kept},
                   {"card_bytes", type.card_bytes}};
  }
  Json tensors = Json::array();
  for (const TensorEntry& entry : source.tensors) {
    Json shape = Json::array();
    for (int i = 0; i < entry.shape.rank; ++i) shape.push_back(entry.shape[i]);
    tensors.push_back({{"name", entry.name},
                       {"type", type_text(entry)},
                       {"shape", shape},
                       {"bytes", entry.file_bytes}});
  }
  Json object = {{"path", result.path},
                 {"format", result.format},
                 {"architecture", result.architecture},
                 {"supported", result.spec.has_value()},
                 {"checked", checked.has_value()},
                 {"checksums", nullptr},
                 {"unsupported", nullptr},
                 {"config", nullptr},
                 {"n_params", result.n_params},
                 {"n_tensors", result.n_tensors},
                 {"bytes", result.file_bytes},
                 {"bpw", bits_per_weight(result.file_bytes, result.n_params)},
                 {"types", types},
                 {"memory", nullptr},
                 {"warnings", result.warnings},
                 {"tensors", tensors}};
  add_json(object, result.tokenizer);
  if (checked) {
    object["checksums"] = {{"sha256_files", checked->n_files.value_or(0)},
                           {"xxh3_tensors", checked->n_tensors}};
  }
  if (!result.input_activations.empty()) object["input_activations"] = result.input_activations;
  if (result.spec) {
    object["config"] = spec_json(*result.spec);
    object["memory"] = {{"ctx", result.ctx},
                        {"weight_bytes", result.weight_memory_bytes},
                        {"kv_bytes", result.kv_bytes},
                        {"total_bytes", result.weight_memory_bytes + result.kv_bytes},
                        {"card_weight_bytes", result.card_weight_bytes},
                        {"card_kv_bytes", result.card_kv_bytes},
                        {"card_total_bytes", result.card_weight_bytes + result.card_kv_bytes},
                        {"ranks", Json::array()}};
    for (const auto& [weight_bytes, kv_bytes] : result.ranks) {
      object["memory"]["ranks"].push_back({{"card_weight_bytes", weight_bytes},
                                           {"card_kv_bytes", kv_bytes},
                                           {"card_total_bytes", weight_bytes + kv_bytes}});
    }
  } else {
    object["unsupported"] = result.refusal;
  }
  return pretty(object);
}

void check_values(const TensorSource& source,
                  const std::function<void(int64_t, int64_t)>& progress) {
  int64_t done = 0;
  for (const TensorEntry& entry : source.tensors) {
    check_values(source, entry);
    progress(++done, int64_t(source.tensors.size()));
  }
  source.check_unchanged();
}

}  // namespace minfer
