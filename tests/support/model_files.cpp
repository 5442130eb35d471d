#include "tests/support/model_files.h"

#include <nlohmann/json.hpp>

namespace minfer::test {

std::vector<float> counting_floats(int64_t n, float first) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(first + float(i) / 8);
  return values;
}

std::string gguf_text(std::string_view text) {
  return bytes_of_values(uint64_t{text.size()}).append(text);
}

GgufBuilder& GgufBuilder::pair(std::string_view key, uint32_t type, std::string_view value) {
  ++pairs_;
  pair_bytes_ += gguf_text(key) + bytes_of_values(type);
  pair_bytes_ += value;
  return *this;
}

GgufBuilder& GgufBuilder::texts(std::string_view key, const std::vector<std::string>& values) {
  std::string bytes = bytes_of_values(uint32_t{kText}, uint64_t{values.size()});
  for (const std::string& value : values) bytes += gguf_text(value);
  return pair(key, kArray, bytes);
}

GgufBuilder& GgufBuilder::tensor(GgufTensor tensor) {
  tensors_.push_back(std::move(tensor));
  return *this;
}

std::string GgufBuilder::build() const {
  const auto padded = [&](std::string bytes) {
    while (bytes.size() % alignment != 0) bytes += '\0';
    return bytes;
  };
  std::string head = bytes_of_values(magic, version, n_tensors.value_or(tensors_.size()),
                                     n_pairs.value_or(pairs_)) +
                     pair_bytes_;
  std::string data;
  for (const GgufTensor& tensor : tensors_) {
    head += gguf_text(tensor.name) + bytes_of_values(static_cast<uint32_t>(tensor.dims.size())) +
            bytes_of_vector(tensor.dims) + bytes_of_values(tensor.type) +
            bytes_of_values(tensor.offset.value_or(data.size()));
    data = padded(data + tensor.data);
  }
  return tensors_.empty() ? head : padded(head) + data;
}

std::string safetensors_file(std::string_view header, std::string_view data) {
  return bytes_of_values(uint64_t{header.size()}).append(header).append(data);
}

std::string safetensors_file(const std::map<std::string, SafetensorsTensor>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  nlohmann::json header = {{"__metadata__", metadata}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data += tensor.data;
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.dims}, {"data_offsets", {begin, data.size()}}};
  }
  return safetensors_file(header.dump(), data);
}

namespace {

struct Part {
  int64_t n = 0;         // elements
  bool is_norm = false;  // a norm vector: f32 in every version
};

struct Parts {
  explicit Parts(const Llama2cSizes& s)
      : embedding{int64_t{s.vocab_size} * s.dim},
        norm{s.dim, true},
        wide{int64_t{s.dim} * s.dim},
        narrow{int64_t{s.dim} * s.dim / s.n_heads * s.n_kv_heads},
        ffn{int64_t{s.ffn_dim} * s.dim},
        n_layers(s.n_layers) {}

  void add(Part part) { all.push_back(part); }
  void add_layers(Part part) {
    for (int64_t i = 0; i < n_layers; ++i) add(part);
  }
  void add_attention() {
    for (const Part& part : {wide, narrow, narrow, wide}) add_layers(part);
  }
  void add_ffn() {
    for (int i = 0; i < 3; ++i) add_layers(ffn);
  }

  Part embedding, norm, wide, narrow, ffn;
  int64_t n_layers;
  std::vector<Part> all;
};

std::vector<Part> versioned_parts(const Llama2cSizes& s) {
  Parts parts(s);
  parts.add_layers(parts.norm);
  parts.add_layers(parts.norm);
  parts.add(parts.norm);
  parts.add(parts.embedding);
  parts.add_attention();
  parts.add_ffn();
  if (!s.tied) parts.add(parts.embedding);
  return parts.all;
}

std::string float_bytes(const std::vector<Part>& parts) {
  std::string bytes;
  for (const Part& part : parts) bytes += bytes_of_vector(counting_floats(part.n));
  return bytes;
}

std::string versioned_header(const Llama2cSizes& s, int32_t version, std::string_view rest) {
  std::string header =
      bytes_of_values(uint32_t{0x616b3432}, version, s.dim, s.ffn_dim, s.n_layers, s.n_heads,
                      s.n_kv_heads, s.vocab_size, s.seq_len, uint8_t{s.tied})
          .append(rest);
  header.resize(256, '\0');
  return header;
}

}  // namespace

std::string llama2c_legacy_file(const Llama2cSizes& s) {
  Parts parts(s);
  parts.add(parts.embedding);
  parts.add_layers(parts.norm);
  parts.add_attention();
  parts.add_layers(parts.norm);
  parts.add_ffn();
  parts.add(parts.norm);
  parts.add({int64_t{s.seq_len} * s.dim / s.n_heads});  // cosines and sines
  if (!s.tied) parts.add(parts.embedding);
  return bytes_of_values(s.dim, s.ffn_dim, s.n_layers, s.n_heads, s.n_kv_heads,
                         s.tied ? s.vocab_size : -s.vocab_size, s.seq_len) +
         float_bytes(parts.all);
}

std::string llama2c_v1_file(const Llama2cSizes& s) {
  return versioned_header(s, 1, "") + float_bytes(versioned_parts(s));
}

std::string llama2c_v2_file(const Llama2cSizes& s, int32_t group) {
  std::string bytes = versioned_header(s, 2, bytes_of_values(group));
  for (const Part& part : versioned_parts(s)) {
    if (part.is_norm) {
      bytes += bytes_of_vector(counting_floats(part.n));
    } else {
      for (int64_t i = 0; i < part.n; ++i) bytes += static_cast<char>(i % 64);
      bytes += bytes_of_vector(std::vector<float>(static_cast<size_t>(part.n / group), 0.5f));
    }
  }
  return bytes;
}

}  // namespace minfer::test
