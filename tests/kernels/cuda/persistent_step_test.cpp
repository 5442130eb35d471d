#include "kernels/cuda/decode/persistent/persistent_step.h"

#include <array>

#include "tests/kernels/cuda/weights.h"
#include "tests/support/float64_ops.h"

namespace minfer::test {
namespace {

struct StepCase {
  const char* name;
  Format format;
  DType cache;
  int64_t dim, ffn_dim, n_heads, n_kv_heads, head_dim;
  int64_t pos;  // position of the first step; the cache is random before it
};
std::ostream& operator<<(std::ostream& out, const StepCase& c) { return out << c.name; }

constexpr int64_t kLayers = 2, kVocab = 200;
constexpr float kEps = 1e-5f;
constexpr int32_t kPages[] = {2, 0, 1};
constexpr int64_t kContext = std::size(kPages) * kPagePositions;

// A model of Llama's kind with random weights, on the card and in float64.
class SmallLlama {
 public:
  explicit SmallLlama(const StepCase& c) : c_(c) {
    const int64_t q_dim = c.n_heads * c.head_dim, kv_dim = c.n_kv_heads * c.head_dim;
    uint64_t seed = 1;
    const auto matrix = [&](Linear& to, float64::Values& values, int64_t out_dim, int64_t in_dim) {
      Weights w(c.format, out_dim, in_dim, seed += 10);
      values = values_of(w, out_dim);
      to.weight = std::move(w.matrix);
    };
    const auto norm = [&](Norm& to, float64::Values& values) {
      const HostTensor weight = random_normal(seed += 10, {c.dim}, DType::F16);
      values = doubles(weight);
      to.weight = to_device(weight);
    };
    for (Layer& l : layers_) {
      LayerWeights& w = l.on_card;
      norm(w.attn_norm, l.attn_norm);
      matrix(w.wq, l.wq, q_dim, c.dim);
      matrix(w.wk, l.wk, kv_dim, c.dim);
      matrix(w.wv, l.wv, kv_dim, c.dim);
      matrix(w.wo, l.wo, c.dim, q_dim);
      norm(w.ffn_norm, l.ffn_norm);
      matrix(w.w_gate, l.w_gate, c.ffn_dim, c.dim);
      matrix(w.w_up, l.w_up, c.ffn_dim, c.dim);
      matrix(w.w_down, l.w_down, c.dim, c.ffn_dim);
      fill_cache(l.cache, seed += 10);
    }
    norm(output_norm_on_card_, output_norm_);
    matrix(output_on_card_, output_, kVocab, c.dim);
    Weights table({}, kVocab, c.dim, seed += 10);
    embedding_ = values_of(table, kVocab);
    embedding_on_card_ = std::move(table.matrix);
    const int64_t n_pairs = c.head_dim / 2;
    HostTensor rope(DType::F32, {kContext, n_pairs, 2});
    for (int64_t i = 0; i < kContext * n_pairs; ++i) {
      const int64_t pos = i / n_pairs, pair = i % n_pairs;
      const double angle = double(pos) * std::pow(1e4, -double(pair) / double(n_pairs));
      rope.as<float>()[2 * i] = float(std::cos(angle));
      rope.as<float>()[2 * i + 1] = float(std::sin(angle));
    }
    rope_ = doubles(rope);
    rope_on_card_ = to_device(rope);
  }

  DecodeModel model() {
    DecodeModel model;
    model.max_seq_len = kContext;
    model.embedding = &embedding_on_card_;
    model.rope_tables = {rope_on_card_};
    for (Layer& l : layers_) {
      LayerSpec spec;
      spec.n_heads = c_.n_heads;
      spec.n_kv_heads = c_.n_kv_heads;
      spec.head_dim = c_.head_dim;
      spec.ffn_dim = c_.ffn_dim;
      spec.norm_eps = kEps;
      spec.rope = 0;
      model.layers.push_back({spec, &l.on_card, &l.cache});
    }
    model.edges.output_norm_eps = kEps;
    model.output_norm = &output_norm_on_card_;
    model.output = &output_on_card_.weight;
    return model;
  }

  // The logits of a step that the card has done, in float64. Attention reads the cache as the card
  // left it, after its new rows are compared with those of float64.
  float64::Values logits(TokenId token, int64_t pos) const {
    const auto row = embedding_.begin() + token * c_.dim;
    float64::Values x(row, row + c_.dim);
    const auto add = [&](const float64::Values& more) {
      for (size_t i = 0; i < x.size(); ++i) x[i] += more[i];
    };
    for (const Layer& l : layers_) {
      float64::Values y = float64::rms_norm(x, l.attn_norm, double(kEps));
      const auto turned = [&](const float64::Values& w, int64_t n_heads) {
        return float64::rope(float64::matmul(y, w, c_.dim), rope_, n_heads, c_.head_dim,
                             c_.head_dim, pos);
      };
      const float64::Values q = turned(l.wq, c_.n_heads), keys = rows(l.cache, 0, pos + 1);
      const float64::Values values = rows(l.cache, 1, pos + 1);
      expect_rounded(keys, turned(l.wk, c_.n_kv_heads));
      expect_rounded(values, float64::matmul(y, l.wv, c_.dim));
      const auto attended =
          float64::attention(q, keys, values, c_.n_heads, c_.n_kv_heads, c_.head_dim, pos,
                             1 / std::sqrt(double(c_.head_dim)));
      add(float64::matmul(attended.out, l.wo, c_.n_heads * c_.head_dim));
      y = float64::rms_norm(x, l.ffn_norm, double(kEps));
      float64::Values hidden = float64::matmul(y, l.w_gate, c_.dim);
      const float64::Values up = float64::matmul(y, l.w_up, c_.dim);
      for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = float64::silu(hidden[i]) * up[i];
      add(float64::matmul(hidden, l.w_down, c_.ffn_dim));
    }
    return float64::matmul(float64::rms_norm(x, output_norm_, double(kEps)), output_, c_.dim);
  }

 private:
  struct Layer {
    LayerWeights on_card;
    KvLayer cache;
    float64::Values attn_norm, wq, wk, wv, wo, ffn_norm, w_gate, w_up, w_down;
  };

  static float64::Values values_of(const Weights& w, int64_t out_dim) {
    float64::Values values;
    for (int64_t i = 0; i < out_dim * w.matrix.in_dim; ++i) {
      values.push_back(w.at(i / w.matrix.in_dim, i % w.matrix.in_dim).first);
    }
    return values;
  }

  void fill_cache(KvLayer& cache, uint64_t seed) const {
    const int64_t n_pages = std::size(kPages);
    const Shape shape{n_pages, c_.n_kv_heads, kPagePositions, c_.head_dim};
    std::mt19937_64 engine(seed);
    const auto fill = [&](DeviceTensor& rows, DeviceTensor& scales_of_rows) {
      if (c_.cache == DType::F16) {
        rows = to_device(random_normal(engine(), shape, DType::F16));
        return;
      }
      HostTensor codes(DType::U8, shape);
      HostTensor scales(DType::F32, {n_pages, c_.n_kv_heads, kPagePositions});
      for (int64_t i = 0; i < shape.n_elements(); ++i) {
        codes.as<uint8_t>()[i] = uint8_t(1 + engine() % 255);
        scales.as<float>()[i / c_.head_dim] = float(engine() % 1000 + 500) / 1e5f;
      }
      rows = to_device(codes);
      scales_of_rows = to_device(scales);
    };
    fill(cache.keys, cache.key_scales);
    fill(cache.values, cache.value_scales);
    cache.n_kv_heads = c_.n_kv_heads;
    cache.head_dim = c_.head_dim;
    cache.n_pages = n_pages;
    cache.dtype = c_.cache;
  }

  // Keys (0) or values (1) of the first n positions, [n, n_kv_heads, head_dim].
  float64::Values rows(const KvLayer& cache, int which, int64_t n) const {
    const HostTensor all = to_host(which == 0 ? cache.keys : cache.values);
    const bool is_u8 = c_.cache == DType::U8;
    const HostTensor scales =
        is_u8 ? to_host(which == 0 ? cache.key_scales : cache.value_scales) : HostTensor();
    float64::Values values;
    for (int64_t row = 0; row < n * c_.n_kv_heads; ++row) {
      const int64_t pos = row / c_.n_kv_heads, page = kPages[pos / kPagePositions];
      const int64_t at =
          (page * c_.n_kv_heads + row % c_.n_kv_heads) * kPagePositions + pos % kPagePositions;
      for (int64_t i = at * c_.head_dim; i < (at + 1) * c_.head_dim; ++i) {
        values.push_back(is_u8 ? (double(all.as<const uint8_t>()[i]) - 128) * double(scales.at(at))
                               : double(all.at(i)));
      }
    }
    return values;
  }

  // Compares the last rows with what they were rounded from: an element may be off by half a step
  // of the type and by 2^-15 of the head's largest element, for f32 sums and flagged words.
  void expect_rounded(const float64::Values& got, const float64::Values& want) const {
    const size_t head_dim = size_t(c_.head_dim), first = got.size() - want.size();
    for (size_t head = 0; head < want.size(); head += head_dim) {
      double largest = 0;
      for (size_t i = 0; i < head_dim; ++i) largest = std::max(largest, std::abs(want[head + i]));
      const double step = c_.cache == DType::U8 ? 1 / 127.0 : 0x1p-10;
      for (size_t i = head; i < head + head_dim; ++i) {
        EXPECT_NEAR(got[first + i], want[i], largest * (step / 2 + 0x1p-15)) << "element " << i;
      }
    }
  }

  StepCase c_;
  std::array<Layer, kLayers> layers_;
  float64::Values embedding_, output_norm_, output_, rope_;
  Matrix embedding_on_card_;
  Norm output_norm_on_card_;
  Linear output_on_card_;
  DeviceTensor rope_on_card_;
};

class PersistentStep : public testing::TestWithParam<StepCase> {};

// A step loses most where blocks exchange numbers, whose last four bits hold the epoch: 2^-19 of
// each number at most, in seven vectors a layer. The bound allows each of these losses to count
// twice. Every step is repeated, with other turns of the threads, and must give the same bits.
TEST_P(PersistentStep, ComputesTheModel) {
  const StepCase& c = GetParam();
  SmallLlama llama(c);
  const auto plan = cuda::PersistentStep::make(stream(), DType::F16, llama.model());
  ASSERT_TRUE(plan);
  for (int64_t i = 0; i < 3; ++i) {
    const auto token = TokenId(i * 67 % kVocab);
    const DecodeRow row{token, c.pos + i, kPages};
    const auto span = plan->step(row);
    const std::vector<float> logits(span.begin(), span.end());
    const float64::Values want = llama.logits(token, c.pos + i);
    double error = 0, size = 0;
    for (size_t k = 0; k < want.size(); ++k) {
      error += std::pow(double(logits[k]) - want[k], 2);
      size += want[k] * want[k];
    }
    EXPECT_LE(std::sqrt(error / size), 2.0 * 7 * kLayers * 0x1p-19) << "step " << i;
    RecordProperty(cat("error_", i), cat(std::sqrt(error / size)));
    for (int repeat = 0; repeat < 2; ++repeat) {
      const auto again = plan->step(row);
      EXPECT_EQ(std::vector(again.begin(), again.end()), logits) << "step " << i;
    }
  }
}

const StepCase kCases[] = {
    {"F16", {}, DType::F16, 64, 96, 4, 2, 32, 2},
    {"F16OverTwoPages", {}, DType::F16, 64, 96, 6, 2, 64, 254},
    {"U4", of_group(DType::U4, DType::F16, false, 32), DType::F16, 64, 192, 2, 2, 64, 200},
    {"FewRows", of_group(DType::U8, DType::F16, false, kRow), DType::F16, 16, 16, 1, 1, 16, 2},
    {"U4InParts", of_group(DType::U4, DType::F16, false, 64), DType::U8, 1088, 128, 4, 2, 64, 127},
    {"U8InParts", of_group(DType::U8, DType::F16, false, kRow), DType::U8, 576, 128, 2, 2, 128,
     126},
};
INSTANTIATE_TEST_SUITE_P(, PersistentStep, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace minfer::test
