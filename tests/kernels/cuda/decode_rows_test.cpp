#include "kernels/cuda/decode/graph/decode_rows.h"

#include "tests/kernels/cuda/weights.h"
#include "tests/support/float64_ops.h"

namespace minfer::test {
namespace {

constexpr int64_t kDim = 64, kFfnDim = 96, kHeads = 4, kKvHeads = 2, kHeadDim = 32, kVocab = 90;
constexpr int64_t kLayers = 2, kContext = 2 * kPagePositions;
constexpr int32_t kPages[] = {1, 0};

// Random weights in F16, and caches that are random too.
class RowsModel {
 public:
  explicit RowsModel(DType cache_dtype) {
    const int64_t q_dim = kHeads * kHeadDim, kv_dim = kKvHeads * kHeadDim;
    const auto vector = [&](int64_t n, DType dtype = DType::F16) {
      return to_device(random_normal(++seed_, {n}, dtype));
    };
    for (int64_t i = 0; i < kLayers; ++i) {
      LayerWeights& w = weights_[size_t(i)];
      w.attn_norm.weight = vector(kDim);
      w.ffn_norm.weight = vector(kDim);
      w.wq.weight = matrix(q_dim, kDim);
      w.wk.weight = matrix(kv_dim, kDim);
      w.wv.weight = matrix(kv_dim, kDim);
      w.wo.weight = matrix(kDim, q_dim);
      w.w_gate.weight = matrix(kFfnDim, kDim);
      w.w_up.weight = matrix(kFfnDim, kDim);
      w.w_down.weight = matrix(kDim, kFfnDim);
      w.q_norm.weight = vector(kHeadDim);
      w.k_norm.weight = vector(kHeadDim);
      w.sinks = vector(kHeads, DType::F32);
      KvLayer& cache = caches_[size_t(i)];
      cache.dtype = cache_dtype;
      cache.n_kv_heads = kKvHeads;
      cache.head_dim = kHeadDim;
      cache.n_pages = std::ssize(kPages);
      const Shape rows{cache.n_pages, kKvHeads, kPagePositions};
      for (DeviceTensor* const x : {&cache.keys, &cache.values}) {
        *x = cuda::allocate_device(cache_dtype, {rows[0], rows[1], rows[2], kHeadDim});
      }
      if (cache_dtype == DType::U8) {
        cache.key_scales = cuda::allocate_device(DType::F32, rows);
        cache.value_scales = cuda::allocate_device(DType::F32, rows);
      }
    }
    embedding_ = matrix(kVocab, kDim);
    positions_ = matrix(kContext, kDim);
    output_norm_.weight = vector(kDim);
    output_ = matrix(kVocab, kDim);
    HostTensor rope(DType::F32, {kContext, kHeadDim / 2, 2});
    for (int64_t i = 0; i < kContext * kHeadDim / 2; ++i) {
      const double angle = double(i / (kHeadDim / 2)) / double(i % (kHeadDim / 2) + 1);
      rope.as<float>()[2 * i] = float(std::cos(angle));
      rope.as<float>()[2 * i + 1] = float(std::sin(angle));
    }
    rope_ = to_device(rope);
  }

  // Of the second layer a query sees five positions.
  DecodeModel model() {
    DecodeModel model;
    model.max_seq_len = kContext;
    model.embedding = &embedding_;
    model.positions = &positions_;
    model.rope_tables = {rope_};
    for (size_t i = 0; i < size_t(kLayers); ++i) {
      LayerSpec spec{.n_heads = kHeads,
                     .n_kv_heads = kKvHeads,
                     .head_dim = kHeadDim,
                     .ffn_dim = kFfnDim,
                     .norm_eps = 1e-5f};
      spec.qk_norm = QkNorm::PerHead;
      spec.rope = 0;
      spec.window = i == 1 ? 5 : 0;
      spec.attn_sinks = true;
      model.layers.push_back({spec, &weights_[i], &caches_[i]});
    }
    model.edges.learned_positions = true;
    model.edges.output_norm_eps = 1e-5f;
    model.output_norm = &output_norm_;
    model.output = &output_;
    model.vocab_size = kVocab;
    return model;
  }

  // The caches' bytes become NaN, or scales of NaN.
  void poison() {
    for (const KvLayer& c : caches_) {
      for (const DeviceTensor* x : {&c.keys, &c.values, &c.key_scales, &c.value_scales}) {
        if (!*x) continue;
        MINFER_CUDA_CHECK(
            cudaMemsetAsync(x->view().data, 0xFF, size_t(x->view().n_bytes()), stream()));
      }
    }
  }

 private:
  Matrix matrix(int64_t out_dim, int64_t in_dim) {
    return std::move(Weights({}, out_dim, in_dim, seed_ += 10).matrix);
  }

  uint64_t seed_ = 0;
  std::array<LayerWeights, kLayers> weights_;
  std::array<KvLayer, kLayers> caches_;
  Matrix embedding_, positions_, output_;
  Norm output_norm_;
  DeviceTensor rope_;
};

// Steps of one row each, and steps of several rows of the same sequence, which see one another,
// give the same logits within the rounding of F16, in a cache that had NaN everywhere. In an int8
// cache that rounding can give an element the next code: 1/127 of the largest of its row, of keys
// and of values, which with a window of five positions are not averaged away. Rows that a
// step wrote are written again by the next one, as behind a draft that was wrong.
TEST(DecodeRows, RowsOfOneSequenceAreAsStepByStep) {
  MINFER_NEEDS_CUDA();
  for (const DType cache_dtype : {DType::F16, DType::U8}) {
    RowsModel small(cache_dtype);
    const double most_error = cache_dtype == DType::U8 ? 2.0 / 127 : 0x1p-8;
    cuda::DecodeRows plan(stream(), DType::F16, small.model());
    const auto row = [](int64_t pos) {
      return DecodeRow{TokenId((pos * 37 + 5) % kVocab), pos, kPages};
    };
    const auto rows_from = [&](int64_t pos, int64_t n) {
      std::vector<DecodeRow> rows;
      for (int64_t i = 0; i < n; ++i) rows.push_back(row(pos + i));
      return rows;
    };
    constexpr int64_t kFirst = 112, kEnd = kFirst + 36;  // into the second page
    const auto begin = [&] {
      small.poison();
      for (int64_t pos = 0; pos < kFirst; pos += 8) plan.step_of_sequence(rows_from(pos, 8));
    };
    begin();
    std::vector<double> want;
    for (int64_t pos = kFirst; pos < kEnd; ++pos) {
      for (const float x : plan.step(rows_from(pos, 1))) want.push_back(double(x));
    }
    begin();
    for (int64_t pos = kFirst, n = 1; pos < kEnd; pos += n++) {
      const std::vector<DecodeRow> rows = rows_from(pos, n);
      if (n > 2) {
        std::vector<DecodeRow> wrong = rows;
        for (DecodeRow& each : wrong) each.token = (each.token + 1) % kVocab;
        plan.step_of_sequence(wrong);
      }
      const std::span<const float> logits = plan.step_of_sequence(rows);
      ASSERT_EQ(std::ssize(logits), n * kVocab);
      for (int64_t i = 0; i < n; ++i) {
        double error = 0, largest = 0;
        for (int64_t v = 0; v < kVocab; ++v) {
          const double expected = want[size_t((pos - kFirst + i) * kVocab + v)];
          const auto found = double(logits[size_t(i * kVocab + v)]);
          ASSERT_TRUE(std::isfinite(expected) && std::isfinite(found)) << i << " at " << pos;
          largest = std::max(largest, std::abs(expected));
          error = std::max(error, std::abs(found - expected));
        }
        ASSERT_LE(error, most_error * largest)
            << cache_dtype << ", row " << i << " of " << n << " at " << pos;
      }
    }
  }
}

}  // namespace
}  // namespace minfer::test
