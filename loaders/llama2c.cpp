#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/math.h"
#include "loaders/byte_reader.h"
#include "loaders/formats.h"

// The .bin files of llama2.c. Version 0 has no magic: a header of seven 32-bit integers and then
// all tensors in f32. Versions 1 (f32) and 2 (int8 in groups) have a header of 256 bytes. The model
// is told in the keys and tensor names of GGUF. Source: export.py of llama2.c.
namespace minfer {
namespace {

constexpr uint32_t kMagic = 0x616b3432;  // "ak42"
constexpr uint64_t kLegacyHeaderBytes = 7 * 4, kHeaderBytes = 256;

struct Header {
  uint32_t version = 0;
  int64_t dim = 0, ffn_dim = 0, n_layers = 0, n_heads = 0, n_kv_heads = 0, vocab_size = 0;
  int64_t seq_len = 0;
  bool tied = false;
  int64_t group = 1;  // elements that share a scale; version 2
  uint64_t bytes = 0;

  int64_t head_dim() const { return dim / n_heads; }
  int64_t kv_dim() const { return head_dim() * n_kv_heads; }
};

void check_range(const char* name, int64_t value, int64_t high) {
  MINFER_REQUIRE(Input, value >= 1 && value <= high, "header: ", name, " is ", value,
                 ", expected 1 to ", high);
}

void check_header(const Header& h) {
  check_range("dim", h.dim, 1 << 20);
  check_range("hidden_dim", h.ffn_dim, 1 << 22);
  check_range("n_layers", h.n_layers, 1024);
  check_range("n_heads", h.n_heads, 4096);
  check_range("n_kv_heads", h.n_kv_heads, h.n_heads);
  check_range("vocab_size", h.vocab_size, 1 << 24);
  check_range("seq_len", h.seq_len, INT32_MAX);
  MINFER_REQUIRE(Input, h.dim % (2 * h.n_heads) == 0, "header: dim is ", h.dim,
                 ", expected a multiple of 2 x ", h.n_heads, " heads");
  MINFER_REQUIRE(Input, h.n_heads % h.n_kv_heads == 0, "header: ", h.n_heads,
                 " heads are no multiple of ", h.n_kv_heads, " key/value heads");
  check_range("group_size", h.group, 1 << 20);
}

bool has_magic(const File& file) {
  return file.size() >= sizeof kMagic && ByteReader(file).read<uint32_t>() == kMagic;
}

Header read_header(const File& file) {
  ByteReader reader(file);
  Header h;
  if (has_magic(file)) {
    reader.read<uint32_t>();
    h.version = reader.read<uint32_t>();
    MINFER_REQUIRE(Input, h.version == 1 || h.version == 2, "version ", h.version,
                   ", supported: 1, 2 and files without a version");
  }
  for (int64_t* field :
       {&h.dim, &h.ffn_dim, &h.n_layers, &h.n_heads, &h.n_kv_heads, &h.vocab_size, &h.seq_len}) {
    *field = reader.read<int32_t>();
  }
  if (h.version == 0) {
    h.tied = h.vocab_size > 0;
    h.vocab_size = h.tied ? h.vocab_size : -h.vocab_size;
    h.bytes = kLegacyHeaderBytes;
  } else {
    const auto tied = reader.read<uint8_t>();
    MINFER_REQUIRE(Input, tied <= 1, "header: shared_classifier is ", int{tied},
                   ", expected 0 or 1");
    h.tied = tied == 1;
    if (h.version == 2) h.group = reader.read<int32_t>();
    h.bytes = kHeaderBytes;
  }
  check_header(h);
  return h;
}

Metadata metadata_of(const Header& h) {
  Metadata metadata;
  metadata.set("general.architecture", std::string("llama"));
  metadata.set("llama.embedding_length", h.dim);
  metadata.set("llama.feed_forward_length", h.ffn_dim);
  metadata.set("llama.block_count", h.n_layers);
  metadata.set("llama.attention.head_count", h.n_heads);
  metadata.set("llama.attention.head_count_kv", h.n_kv_heads);
  metadata.set("llama.context_length", h.seq_len);
  metadata.set("llama.vocab_size", h.vocab_size);
  // Not in the file: constants of llama2.c.
  metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5);
  metadata.set("llama.rope.freq_base", 10000.0);
  return metadata;
}

class Llama2cSource final : public FileTensorSource {
 public:
  explicit Llama2cSource(File file) {
    key_style = KeyStyle::Gguf;
    in_file(file.path(), [&] {
      const Header h = read_header(file);
      format = cat("llama2.c v", h.version);
      metadata = metadata_of(h);
      group_ = h.version == 2 ? h.group : 0;
      end_ = h.bytes;
      if (h.version == 0) {
        place_legacy(h);
      } else {
        place_versioned(h);
      }
      MINFER_REQUIRE(Input, end_ == file.size(), "its header asks for ", end_,
                     " bytes, the file has ", file.size());
    });
    files_.push_back(std::move(file));
  }

  void read_into(HostTensor& to, const TensorEntry& entry) const override {
    const bool quantized = group_ > 0 && entry.shape.rank > 1;  // norms are f32 in any version
    quantized ? read_groups(to, entry) : FileTensorSource::read_into(to, entry);
  }

 private:
  // The tensor that follows in the file.
  void place(const std::string& name, const Shape& shape) {
    const int64_t n = shape.n_elements();
    auto n_bytes = static_cast<uint64_t>(bytes_of(DType::F32, shape));
    if (group_ > 0 && shape.rank > 1) {
      MINFER_REQUIRE(Input, n % group_ == 0, "tensor ", name, ": ", n,
                     " elements are no whole groups of ", group_);
      n_bytes = static_cast<uint64_t>(n + n / group_ * int64_t{sizeof(float)});
    }
    add_tensor({name, DType::F32, shape, n_bytes}, {files_.size(), end_});
    end_ = checked_add(end_, n_bytes);
  }

  void place_in_layers(const Header& h, const char* name, const Shape& shape) {
    for (int64_t i = 0; i < h.n_layers; ++i) place(cat("blk.", i, ".", name, ".weight"), shape);
  }

  void place_attention(const Header& h) {
    place_in_layers(h, "attn_q", {h.dim, h.dim});
    place_in_layers(h, "attn_k", {h.kv_dim(), h.dim});
    place_in_layers(h, "attn_v", {h.kv_dim(), h.dim});
    place_in_layers(h, "attn_output", {h.dim, h.dim});
  }

  void place_ffn(const Header& h) {
    place_in_layers(h, "ffn_gate", {h.ffn_dim, h.dim});
    place_in_layers(h, "ffn_down", {h.dim, h.ffn_dim});
    place_in_layers(h, "ffn_up", {h.ffn_dim, h.dim});
  }

  void place_legacy(const Header& h) {
    place("token_embd.weight", {h.vocab_size, h.dim});
    place_in_layers(h, "attn_norm", {h.dim});
    place_attention(h);
    place_in_layers(h, "ffn_norm", {h.dim});
    place_ffn(h);
    place("output_norm.weight", {h.dim});
    // Two RoPE tables that nobody reads any more: [seq_len, head_dim / 2] cosines, then sines.
    const Shape tables{h.seq_len, h.head_dim()};
    end_ = checked_add(end_, static_cast<uint64_t>(bytes_of(DType::F32, tables)));
    if (!h.tied) place("output.weight", {h.vocab_size, h.dim});
  }

  void place_versioned(const Header& h) {
    place_in_layers(h, "attn_norm", {h.dim});
    place_in_layers(h, "ffn_norm", {h.dim});
    place("output_norm.weight", {h.dim});
    place("token_embd.weight", {h.vocab_size, h.dim});
    place_attention(h);
    place_ffn(h);
    if (!h.tied) place("output.weight", {h.vocab_size, h.dim});
  }

  // All int8 values of the tensor, then one f32 scale per group. Groups run over the flat tensor,
  // so that one may cross a row.
  void read_groups(HostTensor& to, const TensorEntry& entry) const {
    std::vector<char> bytes(entry.file_bytes);
    read_bytes(entry, bytes.data());
    to.reset(DType::F32, entry.shape);
    float* out = to.as<float>();
    const int64_t n = entry.shape.n_elements();
    const char* scales = bytes.data() + n;
    for (int64_t i = 0; i < n; ++i) {
      float scale;
      std::memcpy(&scale, scales + i / group_ * int64_t{sizeof scale}, sizeof scale);
      out[i] = float(static_cast<int8_t>(bytes[static_cast<size_t>(i)])) * scale;
    }
  }

  int64_t group_ = 0;  // elements that share a scale; 0: all is f32
  uint64_t end_ = 0;   // of what has been placed
};

}  // namespace

bool is_llama2c(const File& file) {
  if (has_magic(file)) return true;
  try {  // the legacy header has nothing to know it by but plausible sizes
    read_header(file);
    return true;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Input) throw;
    return false;
  }
}

std::unique_ptr<TensorSource> open_llama2c(File file) {
  return std::make_unique<Llama2cSource>(std::move(file));
}

}  // namespace minfer
