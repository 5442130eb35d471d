#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/quantize/quantize.h"
#include "models/spec.h"
#include "models/weight_names.h"

namespace minfer {

// The type that a tensor is stored in. Keep is the source's type, or F16 if that is no float type.
enum class StoredType { Keep, F16, BF16, Int8, Int4 };

struct QuantizeOptions {
  StoredType type = StoredType::Int4;  // of the linear layers: Int4 or Int8
  int64_t group = 64;                  // of `type`; 0: a row. The other type has int4 64, int8 row
  bool asymmetric = false;             // int4
  // If absent: int8 with one scale per row; for a tied pair, the source's type.
  std::optional<StoredType> head = {}, embedding = {};
  // Sets types by name; the last rule that matches applies. '*' is any text, '?' any character.
  struct Rule {
    std::string pattern;
    StoredType type;
  };
  std::vector<Rule> rules = {};
};

// One tensor of the model: where it comes from and what it becomes.
struct PlannedTensor {
  TensorEntry output;  // with Hugging Face's name; file_bytes is set later, by the output's format
  DType source_type = DType::F32;
  int64_t source_bytes = 0;
  const TensorEntry* source = nullptr;           // null in a plan from a configuration alone
  std::shared_ptr<const TensorEntry> flat = {};  // as in WeightBinding: keeps `source`
  int64_t source_begin = 0;                      // the first of its rows in `source`
  WeightInfo weight = {};
  int64_t rope_heads = 0, rotary_dim = 0;  // as in WeightPart
  float offset = 0;       // added to each element, where formats store a norm's weights differently
  bool fallback = false;  // the group does not divide its rows: int8 by row (in GGUF: F16) instead
};

struct QuantizePlan {
  ModelSpec spec;
  std::vector<PlannedTensor> tensors;
  std::vector<std::string> unused;  // tensors of the source that the model does not use

  std::vector<TensorEntry> outputs() const;
};

// Makes the plan from the headers alone; it points into the source. Throws Input for a model that
// config.json cannot express, for GPT-2 and for a source that is quantized in groups already; Usage
// for a rule that matches no tensor.
QuantizePlan plan_quantization(const TensorSource& source, const QuantizeOptions& options);

// The same from a config.json alone, for the sizes. The source's type is the one that it names.
QuantizePlan plan_quantization(const std::string& config_path, const QuantizeOptions& options);

}  // namespace minfer
