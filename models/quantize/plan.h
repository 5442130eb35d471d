#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/quantize/quantize.h"
#include "models/spec.h"
#include "models/weight_names.h"

namespace minfer {

// What a tensor is to be stored as. Keep: as in the source; where that is no float type, F16.
enum class StoredType { Keep, F16, BF16, Int8, Int4 };

struct QuantizeOptions {
  StoredType type = StoredType::Int4;  // of the linear layers: Int4 or Int8
  int64_t group = 64;                  // of that type; 0: row. The other type: int4 64, int8 row
  bool asymmetric = false;             // int4
  // Absent: int8 by row; of a tied pair, the source's type.
  std::optional<StoredType> head = {}, embedding = {};
  // By name; of several that fit a tensor the last holds. '*' is any text, '?' any character.
  struct Rule {
    std::string pattern;
    StoredType type;
  };
  std::vector<Rule> rules = {};
};

// One tensor of the model: where it comes from and what it becomes.
struct PlannedTensor {
  TensorEntry output;  // by Hugging Face's name; file_bytes is for the writer's format to say
  DType source_type = DType::F32;
  int64_t source_bytes = 0;
  const TensorEntry* source = nullptr;  // null in a plan from a configuration alone
  WeightInfo weight = {};
  int64_t rope_heads = 0, rotary_dim = 0;  // as in WeightPart
  bool fallback = false;  // its rows are no multiple of the group: int8 by row instead
};

struct QuantizePlan {
  ModelSpec spec;
  std::vector<PlannedTensor> tensors;
  std::vector<std::string> unused;  // tensors of the source that the model does not use

  std::vector<TensorEntry> outputs() const;
};

// From the headers alone. Throws Input for a model that cannot be written in Hugging Face's form:
// GPT-2, what its configuration cannot say, a source that is quantized in groups already; Usage for
// a rule that fits no tensor. The plan points into the source.
QuantizePlan plan_quantization(const TensorSource& source, const QuantizeOptions& options);

// The same from a config.json alone, for its sizes. The weights have the type that it names.
QuantizePlan plan_quantization(const std::string& config_path, const QuantizeOptions& options);

}  // namespace minfer
