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

// Which vocabulary of keys and tensor names a source speaks.
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
  // Set where `dtype` is U4 or U8: a matrix for read_quantized(), whose parts are several tensors
  // of the file under one name ("model.layers.0.mlp.up_proj.weight").
  std::optional<QuantScheme> quant = std::nullopt;
};

// "int4 g64", "int8 row asymmetric": for people. group 0: one scale a row.
std::string groups_text(int bits, int64_t group, bool asymmetric);
// The same of an entry; of one without groups the name of its dtype.
std::string type_text(const TensorEntry& entry);

// A checkpoint whose headers have been read and checked, whatever its format. Made by open_source;
// no tensor data is read before read().
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  std::string path;    // as the user gave it: for messages
  std::string format;  // "gguf v3", "safetensors", "llama2.c v0": for people
  KeyStyle key_style = KeyStyle::Gguf;
  Metadata metadata;  // GGUF keys as they are (llama2.c speaks them too), config.json's for HF
  std::vector<TensorEntry> tensors;   // in the order of the file, names unique
  std::vector<std::string> warnings;  // one line each: unused bytes, shards that no index names
  // Sound tensors that are not in `tensors` because we cannot deliver them, by name, with the
  // reason: "has dtype I64, ...".
  std::map<std::string, std::string> unusable;
  // How a quantized checkpoint wants the inputs of its matrices: "int8" or "int8-asym", one scale a
  // token found on the way; empty: as floats.
  std::string input_activations;

  const TensorEntry* find(const std::string& name) const;  // null where there is none

  // The whole tensor, in the memory of `to` where that is large enough. Thread-safe. Throws System
  // where the file is short or has changed since it was opened.
  virtual void read_into(HostTensor& to, const TensorEntry& entry) const = 0;
  HostTensor read(const TensorEntry& entry) const;
  // Rows [begin, begin + n) of the outermost dim of one that read() delivers. Thread-safe.
  virtual HostTensor read_rows(const TensorEntry& entry, int64_t begin, int64_t n) const;
  // The same for an entry with `quant`. Thread-safe.
  virtual void read_quantized_into(HostQuantizedMatrix& to, const TensorEntry& entry) const;
  HostQuantizedMatrix read_quantized(const TensorEntry& entry) const;
  // Holds every tensor of the files against the checksum that they carry for it ("xxh3.NAME" in
  // safetensors' __metadata__): Input where one differs. Returns how many have one.
  virtual int64_t check_checksums() const { return 0; }
  // After the last read: throws System where a file is no longer the one that was opened.
  virtual void check_unchanged() const = 0;

 protected:
  // Appends to `tensors`; Input where the name is there already.
  void add_tensor(TensorEntry entry);
  size_t index_of(const TensorEntry& entry) const;  // in `tensors`

 private:
  std::unordered_map<std::string, size_t> index_;
};

// Opens a Hugging Face directory, a .safetensors file, a .gguf file (or the first of a split set)
// or a llama2.c .bin. The format is told by content, not by name. Throws Input (malformed,
// unsupported, missing, not a regular file) or System; no message spans two lines.
std::unique_ptr<TensorSource> open_source(const std::string& path);

}  // namespace minfer
