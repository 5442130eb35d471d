#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/base/host_tensor.h"
#include "kernels/base/quantized_matrix.h"
#include "kernels/base/tensor.h"
#include "loaders/metadata.h"

namespace minfer {

// The naming of keys and tensors that a source uses.
enum class KeyStyle { HuggingFace, Gguf };

// How a weight of a quantized Hugging Face checkpoint reads as a QuantizedMatrix.
struct QuantScheme {
  DType scales = DType::F16;  // or F32
  int64_t group = 0;
  bool asymmetric = false;
};

// One tensor of a checkpoint, checked: its bytes lie inside the file and fit its shape.
struct TensorEntry {
  std::string name;
  DType dtype = DType::F32;  // what read() delivers
  Shape shape;               // row-major, outermost first (GGUF's dims are already reversed)
  uint64_t file_bytes = 0;   // what it takes in the file, with its scales
  // Set if `dtype` is U4 or U8: the entry is a matrix for read_quantized(), which is made from
  // several tensors of the file and has one name ("model.layers.0.mlp.up_proj.weight").
  std::optional<QuantScheme> quant = std::nullopt;
};

// "int4 g64", "int8 row asymmetric": for people. group 0: one scale a row.
std::string groups_text(int bits, int64_t group, bool asymmetric);
// The same for an entry; for one without groups, the name of its dtype.
std::string type_text(const TensorEntry& entry);

// A checkpoint whose headers have been read and checked, whatever its format. Made by open_source;
// no tensor data is read before read().
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  std::string path;    // as the user gave it: for messages
  std::string format;  // "gguf v3", "safetensors", "llama2.c v0": for people
  KeyStyle key_style = KeyStyle::Gguf;
  Metadata metadata;                  // the keys of GGUF (also for llama2.c) or of config.json
  std::vector<TensorEntry> tensors;   // in the order of the file, names unique
  std::vector<std::string> warnings;  // one line each: unused bytes, shards that no index names
  // Valid tensors that are not in `tensors` because they cannot be delivered, by name, with the
  // reason: "has dtype I64, ...".
  std::map<std::string, std::string> unusable;
  // The type that a quantized checkpoint wants for the inputs of its matrices: "int8" or
  // "int8-asym", with one dynamic scale per token; empty: floats.
  std::string input_activations;

  const TensorEntry* find(const std::string& name) const;  // null where there is none

  // Reads the whole tensor, into the memory of `to` if that is large enough. Thread-safe. Throws
  // System if the file cannot be read or has become shorter since it was opened.
  virtual void read_into(HostTensor& to, const TensorEntry& entry) const = 0;
  HostTensor read(const TensorEntry& entry) const;
  // Reads rows [begin, begin + n) of the outermost dim of an entry without `quant`. Thread-safe.
  virtual HostTensor read_rows(const TensorEntry& entry, int64_t begin, int64_t n) const;
  // Reads the whole matrix of an entry with `quant`. Thread-safe.
  virtual void read_quantized_into(HostQuantizedMatrix& to, const TensorEntry& entry) const;
  HostQuantizedMatrix read_quantized(const TensorEntry& entry) const;
  // Checks every tensor of the files against the checksum that they carry for it ("xxh3.NAME" in
  // safetensors' __metadata__). Throws Input if one differs. Returns how many have a checksum.
  virtual int64_t check_checksums() const { return 0; }
  // Call it after the last read. Throws System if a file is no longer the one that was opened.
  virtual void check_unchanged() const = 0;

 protected:
  // Appends to `tensors`; throws Input if the name is there already.
  void add_tensor(TensorEntry entry);
  size_t index_of(const TensorEntry& entry) const;  // in `tensors`

 private:
  std::unordered_map<std::string, size_t> index_;
};

// Opens a Hugging Face directory, a .safetensors file, a .gguf file (or the first of a split set)
// or a llama2.c .bin. The content tells the format, not the name. Throws Input (malformed,
// unsupported, missing, not a regular file) or System; no message spans two lines.
std::unique_ptr<TensorSource> open_source(const std::string& path);

}  // namespace minfer
