#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Model files built in memory, byte by byte and without the code under test: valid by default, and
// broken where a test asks for it.
namespace minfer::test {

// The bytes of plain values, one after another.
template <typename... T>
std::string bytes_of_values(const T&... values) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
  return bytes;
}

template <typename T>
std::string bytes_of_vector(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// n floats 0, 1/8, 2/8, ...: exact in any float type while below 2^8.
std::vector<float> counting_floats(int64_t n, float first = 0);

// Numbers of GGUF's value types.
enum GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64
};

std::string gguf_text(std::string_view text);  // length and bytes

struct GgufTensor {
  std::string name;
  std::vector<uint64_t> dims;  // innermost first, as in the file
  uint32_t type = 0;           // F32
  std::string data;
  std::optional<uint64_t> offset = {};  // default: after the tensor before it
};

class GgufBuilder {
 public:
  uint32_t magic = 0x46554747, version = 3;
  std::optional<uint64_t> n_tensors, n_pairs;  // default: as many as there are
  uint64_t alignment = 32;                     // of the data; the key is the caller's

  GgufBuilder& pair(std::string_view key, uint32_t type, std::string_view value);
  template <typename T>
  GgufBuilder& array(std::string_view key, uint32_t type, const std::vector<T>& values) {
    return pair(key, kArray,
                bytes_of_values(type, uint64_t{values.size()}) + bytes_of_vector(values));
  }
  GgufBuilder& texts(std::string_view key, const std::vector<std::string>& values);
  GgufBuilder& tensor(GgufTensor tensor);
  std::string build() const;

 private:
  uint64_t pairs_ = 0;
  std::string pair_bytes_;
  std::vector<GgufTensor> tensors_;
};

// A safetensors file: length, header text and data.
std::string safetensors_file(std::string_view header, std::string_view data);

struct SafetensorsTensor {
  std::string dtype;  // "I32"
  std::vector<int64_t> dims;
  std::string data;
};
// Tensors by name; the data is in that order, without gaps.
std::string safetensors_file(const std::map<std::string, SafetensorsTensor>& tensors,
                             const std::map<std::string, std::string>& metadata);

struct Llama2cSizes {
  int32_t dim = 8, ffn_dim = 12, n_layers = 2, n_heads = 2, n_kv_heads = 1, vocab_size = 16;
  int32_t seq_len = 4;
  bool tied = true;
};

// Every weight is counting_floats, tensor after tensor, in the order of the file.
std::string llama2c_legacy_file(const Llama2cSizes& sizes);
std::string llama2c_v1_file(const Llama2cSizes& sizes);
// Every int8 value is its index modulo 64, every scale 0.5.
std::string llama2c_v2_file(const Llama2cSizes& sizes, int32_t group);

}  // namespace minfer::test
