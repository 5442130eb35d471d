#include <algorithm>
#include <cstring>

#include "kernels/base/quant_blocks.h"
#include "loaders/packed_words.h"

// The experts of gpt-oss in Hugging Face files, delivered as those of other families are:
// [n_experts, out, in], rows of gate in front of those of up. The files have rows of gate and up in
// turns, and matrices of floats as [n_experts, in, out]; those of MXFP4 are [n_experts, out, in],
// as codes in blocks of 32 columns and, in another tensor, their exponents.
// Source: transformers, modeling_gpt_oss.py and integrations/mxfp4.py.
namespace minfer {
namespace {

using Stored = PackedWeight::Stored;

constexpr int64_t kBlock = BlockMXFP4::kElements, kCodeBytes = kBlock / 2;

// The tensors of one name, and the sizes that follow from them.
struct Experts {
  const Stored* values;               // floats, or codes
  const Stored* exponents = nullptr;  // of codes
  DType dtype = DType::MXFP4;         // as delivered
  int64_t n_rows = 0, n_columns = 1;  // of an expert, as delivered
  bool in_turns = false;              // rows of gate and up

  int64_t row_bytes() const { return bytes_of(dtype, n_columns); }
  int64_t stored_row(int64_t row) const {
    if (!in_turns) return row;
    const int64_t half = n_rows / 2;
    return row < half ? 2 * row : 2 * (row - half) + 1;
  }
};

// The bytes of one expert.
std::vector<uint8_t> read_expert(const SafetensorsSource& files, const Stored& stored,
                                 int64_t expert) {
  const auto n_experts = static_cast<uint64_t>(stored.record.dims[0]);
  std::vector<uint8_t> bytes(stored.n_bytes() / n_experts);
  files.read_stored(stored, static_cast<uint64_t>(expert) * bytes.size(), bytes.size(),
                    bytes.data());
  return bytes;
}

// Codes of neighbours share a byte in the file; in GGUF's blocks, codes i and i + 16 do.
void to_block(uint8_t* to, uint8_t exponent, const uint8_t* codes) {
  BlockMXFP4 block;
  block.e = exponent;
  const auto code = [&](int64_t i) { return codes[i / 2] >> (i % 2 * 4) & 15; };
  for (int64_t i = 0; i < kCodeBytes; ++i) {
    block.q[i] = static_cast<uint8_t>(code(i) | code(i + kCodeBytes) << 4);
  }
  std::memcpy(to, &block, sizeof block);
}

// Rows [begin, end) of one expert, as delivered.
void read_rows_of_expert(uint8_t* to, const SafetensorsSource& files, const Experts& e,
                         int64_t expert, int64_t begin, int64_t end) {
  const std::vector<uint8_t> values = read_expert(files, *e.values, expert);
  if (e.exponents != nullptr) {
    const std::vector<uint8_t> exponents = read_expert(files, *e.exponents, expert);
    const int64_t n_blocks = e.n_columns / kBlock;
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < n_blocks; ++i, to += sizeof(BlockMXFP4)) {
        const int64_t at = e.stored_row(row) * n_blocks + i;
        to_block(to, exponents[size_t(at)], values.data() + at * kCodeBytes);
      }
    }
    return;
  }
  visit_float(e.dtype, [&]<typename T>() {
    constexpr int64_t kRowsAtOnce = 32;  // so that lines of memory are used as a whole
    const T* const from = reinterpret_cast<const T*>(values.data());
    T* const out = reinterpret_cast<T*>(to);
    for (int64_t first = begin; first < end; first += kRowsAtOnce) {
      const int64_t last = std::min(end, first + kRowsAtOnce);
      for (int64_t column = 0; column < e.n_columns; ++column) {
        for (int64_t row = first; row < last; ++row) {
          out[(row - begin) * e.n_columns + column] = from[column * e.n_rows + e.stored_row(row)];
        }
      }
    }
  });
}

const std::vector<int64_t>& dims_of(const Stored& stored, size_t rank) {
  const std::vector<int64_t>& dims = stored.record.dims;
  MINFER_REQUIRE(Input, dims.size() == rank && std::ranges::min(dims) > 0, "tensor ",
                 shortened(stored.record.name), ": has ", dims.size(), " dims, expected ", rank,
                 " of more than 0");
  return dims;
}

// Matrices [n_experts, in, out], or biases [n_experts, out].
Experts find_floats(const Stored& values, bool in_turns, bool are_biases) {
  const std::vector<int64_t>& dims = dims_of(values, are_biases ? 2 : 3);
  Experts e{.values = &values, .in_turns = in_turns};
  MINFER_REQUIRE(Input, values.record.dtype.has_value(), "tensor ", shortened(values.record.name),
                 ": has dtype ", values.record.type_name, ", expected F32, F16 or BF16");
  e.dtype = *values.record.dtype;
  e.n_rows = dims.back();
  if (!are_biases) e.n_columns = dims[1];
  return e;
}

Experts find_blocks(const SafetensorsSource& source, const Stored& values,
                    const std::string& module, bool in_turns) {
  const std::vector<int64_t>& dims = dims_of(values, 4);
  const auto require_bytes = [](const Stored& stored) {
    MINFER_REQUIRE(Input, stored.record.type_name == "U8", "tensor ", shortened(stored.record.name),
                   ": has dtype ", stored.record.type_name, ", expected U8");
  };
  const Stored* const exponents = source.find_stored(module + "_scales");
  MINFER_REQUIRE(Input, exponents != nullptr, "tensor ", shortened(module + "_scales"),
                 ": is missing");
  require_bytes(values);
  require_bytes(*exponents);
  require_dims(values, {dims[0], dims[1], dims[2], kCodeBytes});
  require_dims(*exponents, {dims[0], dims[1], dims[2]});
  return {.values = &values,
          .exponents = exponents,
          .n_rows = dims[1],
          .n_columns = checked_mul(dims[2], kBlock),
          .in_turns = in_turns};
}

PackedWeight make_weight(const std::string& name, const Experts& e) {
  MINFER_REQUIRE(Input, !e.in_turns || e.n_rows % 2 == 0, "tensor ",
                 shortened(e.values->record.name), ": has ", e.n_rows,
                 " rows of gate and up, expected an even number");
  PackedWeight weight;
  const int64_t n_experts = e.values->record.dims[0];
  weight.entry.name = name;
  weight.entry.dtype = e.dtype;
  weight.entry.shape = e.values->record.dims.size() == 2 ? Shape{n_experts, e.n_rows}
                                                         : Shape{n_experts, e.n_rows, e.n_columns};
  weight.parts = {e.values};
  if (e.exponents != nullptr) weight.parts.push_back(e.exponents);
  for (const Stored* part : weight.parts) weight.entry.file_bytes += part->n_bytes();
  weight.read_rows = [e](void* to, const SafetensorsSource& files, int64_t begin, int64_t n) {
    auto* out = static_cast<uint8_t*>(to);
    for (int64_t row = begin, end = begin + n; row < end;) {
      const int64_t expert = row / e.n_rows, first = row % e.n_rows;
      const int64_t last = std::min(e.n_rows, first + end - row);
      read_rows_of_expert(out, files, e, expert, first, last);
      out += (last - first) * e.row_bytes();
      row += last - first;
    }
  };
  return weight;
}

}  // namespace

PackedWeights find_gpt_oss_experts(const SafetensorsSource& source) {
  PackedWeights packed;
  const std::string blocks = "_blocks";
  for (const Stored& stored : source.all_stored()) {
    const std::string& name = stored.record.name;
    for (const char* matrix : {".experts.gate_up_proj", ".experts.down_proj"}) {
      const bool in_turns = std::string_view(matrix).ends_with("gate_up_proj");
      if (name.ends_with(matrix)) {
        packed.weights.push_back(
            make_weight(name, find_floats(stored, in_turns, /*are_biases=*/false)));
      } else if (in_turns && name.ends_with(cat(matrix, "_bias"))) {
        packed.weights.push_back(
            make_weight(name, find_floats(stored, in_turns, /*are_biases=*/true)));
      } else if (name.ends_with(matrix + blocks)) {
        const std::string module = name.substr(0, name.size() - blocks.size());
        packed.weights.push_back(
            make_weight(module, find_blocks(source, stored, module, in_turns)));
        packed.scheme = "mxfp4";
      }
    }
  }
  return packed;
}

}  // namespace minfer
