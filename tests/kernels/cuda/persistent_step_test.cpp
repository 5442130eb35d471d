#include "kernels/cuda/decode/persistent/persistent_step.h"

#include <array>

#include "kernels/comm/ring.h"
#include "kernels/cuda/decode/captured_plan.h"
#include "models/weight_slice.h"
#include "tests/kernels/cuda/emulated/emulator.h"
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
// A step loses most where blocks exchange numbers, whose last four bits hold the epoch: 2^-19 of
// each number at most, in seven vectors a layer. The bound allows each of these losses to count
// twice.
constexpr double kMostError = 2.0 * 7 * kLayers * 0x1p-19;

// A model of Llama's kind with random weights, on the card and in float64.
class SmallLlama {
 public:
  explicit SmallLlama(const StepCase& c) : c_(c) {
    const int64_t q_dim = c.n_heads * c.head_dim, kv_dim = c.n_kv_heads * c.head_dim;
    uint64_t seed = 1;
    const auto matrix = [&](Linear& to, float64::Values& values, int64_t out_dim, int64_t in_dim) {
      Weights& w =
          weights_.emplace(&to, Weights(c.format, out_dim, in_dim, seed += 10)).first->second;
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
    model.vocab_size = kVocab;
    return model;
  }

  // What a rank of several has of the model: its rows of the output layer, or all of them, whose
  // logits then follow those of the rank before.
  struct Rank {
    std::array<LayerWeights, kLayers> layers;
    std::array<KvLayer, kLayers> caches;
    Linear output;
    DecodeModel model;
  };
  std::unique_ptr<Rank> rank(int index, int n_ranks, bool cuts_output) {
    auto rank = std::make_unique<Rank>();
    const int64_t unit = std::max<int64_t>(c_.format.group, 16), kv_heads = c_.n_kv_heads;
    const auto part = [&](int64_t n, int64_t of) {
      const int64_t begin = chunk_begin(n / of, n_ranks, index) * of;
      return ShardRange{begin, chunk_begin(n / of, n_ranks, index + 1) * of - begin};
    };
    const ShardRange kv = part(kv_heads, 1), ffn = part(c_.ffn_dim, unit);
    const auto times = [](const ShardRange& range, int64_t n) {
      return ShardRange{range.begin * n, range.n * n};
    };
    const int64_t group = c_.n_heads / kv_heads;
    const ShardRange kv_rows = times(kv, c_.head_dim), q_rows = times(kv_rows, group);
    rank->model = model();
    for (size_t i = 0; i < kLayers; ++i) {
      const Layer& whole = layers_[i];
      LayerWeights& own = rank->layers[i];
      own.attn_norm.weight = to_device(to_host(whole.on_card.attn_norm.weight));
      own.ffn_norm.weight = to_device(to_host(whole.on_card.ffn_norm.weight));
      cut_rows(own.wq, whole.on_card.wq, q_rows);
      cut_rows(own.wk, whole.on_card.wk, kv_rows);
      cut_rows(own.wv, whole.on_card.wv, kv_rows);
      cut_columns(own.wo, whole.on_card.wo, q_rows);
      cut_rows(own.w_gate, whole.on_card.w_gate, ffn);
      cut_rows(own.w_up, whole.on_card.w_up, ffn);
      cut_columns(own.w_down, whole.on_card.w_down, ffn);
      rank->caches[i] = cache_of_heads(whole.cache, kv);
      DecodeLayer& layer = rank->model.layers[i];
      layer.weights = &own;
      layer.cache = &rank->caches[i];
      layer.spec.n_heads = kv.n * group;
      layer.spec.n_kv_heads = kv.n;
      layer.spec.ffn_dim = ffn.n;
    }
    if (cuts_output) {
      const ShardRange rows = part(kVocab, 1);
      cut_rows(rank->output, output_on_card_, rows);
      rank->model.output = &rank->output.weight;
      rank->model.logits_begin = rows.begin;
    } else {
      rank->model.vocab_size = n_ranks * kVocab;
      rank->model.logits_begin = index * kVocab;
    }
    kv_of_ranks_.push_back(kv);
    return rank;
  }
  // Copies to the whole cache what a rank's has.
  void take_cache(int index, const Rank& rank) {
    for (size_t i = 0; i < kLayers; ++i) {
      copy_heads(layers_[i].cache, rank.caches[i], kv_of_ranks_[size_t(index)], false);
    }
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

  const Weights& weights_of(const Linear& linear) const { return weights_.at(&linear); }
  static void set(Linear& to, HostTensor floats) {
    to.weight.storage = to_device(floats);
    to.weight.out_dim = floats.view().shape[0];
    to.weight.in_dim = floats.view().shape[1];
    to.weight.dtype = floats.view().dtype;
  }
  void cut_rows(Linear& to, const Linear& whole, const ShardRange& rows) const {
    const Weights& w = weights_of(whole);
    if (w.format.group == 0) return set(to, take_rows(w.floats.view(), {&rows, 1}));
    to.weight = pack(take_rows(w.quantized.view(), {&rows, 1}).view());
  }
  void cut_columns(Linear& to, const Linear& whole, const ShardRange& columns) const {
    const Weights& w = weights_of(whole);
    if (w.format.group == 0) return set(to, take_columns(w.floats.view(), {&columns, 1}));
    to.weight = pack(take_columns(w.quantized.view(), {&columns, 1}).view());
  }

  // Copies `heads` of a whole cache to one that has only these, or back.
  static void copy_heads(const KvLayer& whole, const KvLayer& part, const ShardRange& heads,
                         bool to_part) {
    const auto bytes_at = [](const DeviceTensor& x) {
      return static_cast<uint8_t*>(x.view().data);
    };
    const auto copy = [&](const DeviceTensor& all, const DeviceTensor& some, int64_t row_bytes) {
      const int64_t n_bytes = kPagePositions * row_bytes;
      for (int64_t page = 0; page < whole.n_pages; ++page) {
        for (int64_t head = 0; head < heads.n; ++head) {
          auto* const a = bytes_at(all) + (page * whole.n_kv_heads + heads.begin + head) * n_bytes;
          auto* const b = bytes_at(some) + (page * heads.n + head) * n_bytes;
          std::memcpy(to_part ? b : a, to_part ? a : b, size_t(n_bytes));
        }
      }
    };
    const bool is_u8 = whole.dtype == DType::U8;
    const int64_t row_bytes = whole.head_dim * (is_u8 ? 1 : 2);
    copy(whole.keys, part.keys, row_bytes);
    copy(whole.values, part.values, row_bytes);
    if (!is_u8) return;
    copy(whole.key_scales, part.key_scales, 4);
    copy(whole.value_scales, part.value_scales, 4);
  }
  static KvLayer cache_of_heads(const KvLayer& whole, const ShardRange& heads) {
    KvLayer part;
    part.n_kv_heads = heads.n;
    part.head_dim = whole.head_dim;
    part.n_pages = whole.n_pages;
    part.dtype = whole.dtype;
    const Shape shape{whole.n_pages, heads.n, kPagePositions, whole.head_dim};
    part.keys = cuda::allocate_device(whole.dtype, shape);
    part.values = cuda::allocate_device(whole.dtype, shape);
    if (whole.dtype == DType::U8) {
      const Shape rows{whole.n_pages, heads.n, kPagePositions};
      part.key_scales = cuda::allocate_device(DType::F32, rows);
      part.value_scales = cuda::allocate_device(DType::F32, rows);
    }
    copy_heads(whole, part, heads, true);
    return part;
  }

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
  std::map<const Linear*, Weights> weights_;
  std::vector<ShardRange> kv_of_ranks_;
  float64::Values embedding_, output_norm_, output_, rope_;
  Matrix embedding_on_card_;
  Norm output_norm_on_card_;
  Linear output_on_card_;
  DeviceTensor rope_on_card_;
};

class PersistentStep : public testing::TestWithParam<StepCase> {};

double error_of(const std::vector<float>& logits, const float64::Values& want) {
  double error = 0, size = 0;
  for (size_t k = 0; k < want.size(); ++k) {
    error += std::pow(double(logits[k]) - want[k], 2);
    size += want[k] * want[k];
  }
  return std::sqrt(error / size);
}

std::unique_ptr<DecodePlan> plan_of(const DecodeModel& model) {
  std::vector<std::unique_ptr<cuda::CapturedStep>> steps;
  steps.push_back(cuda::PersistentStep::make(stream(), DType::F16, model));
  if (!steps.front()) return nullptr;
  return std::make_unique<cuda::CapturedPlan>(std::move(steps));
}

// Every step is repeated, with other turns of the threads, and must give the same bits.
TEST_P(PersistentStep, ComputesTheModel) {
  const StepCase& c = GetParam();
  SmallLlama llama(c);
  const auto plan = plan_of(llama.model());
  ASSERT_TRUE(plan);
  for (int64_t i = 0; i < 3; ++i) {
    const auto token = TokenId(i * 67 % kVocab);
    const DecodeRow row{token, c.pos + i, kPages};
    const auto span = plan->step(row);
    const std::vector<float> logits(span.begin(), span.end());
    const double error = error_of(logits, llama.logits(token, c.pos + i));
    EXPECT_LE(error, kMostError) << "step " << i;
    RecordProperty(cat("error_", i), cat(error));
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

// Ranks that share the model, all at once. They may have unequal slices.
struct RanksCase {
  StepCase of;
  int n_ranks;
  bool cuts_output;
};
std::ostream& operator<<(std::ostream& out, const RanksCase& c) { return out << c.of.name; }

class PersistentRanks : public testing::TestWithParam<RanksCase> {};

// The sums over the ranks lose as much as another vector each: nine in place of seven.
TEST_P(PersistentRanks, ComputeTheModelOnAllRanks) {
  const auto& [c, n_ranks, cuts_output] = GetParam();
  SmallLlama llama(c);
  std::vector<std::unique_ptr<SmallLlama::Rank>> ranks;
  std::vector<std::unique_ptr<cuda::PersistentStep>> steps;
  for (int rank = 0; rank < n_ranks; ++rank) {
    ranks.push_back(llama.rank(rank, n_ranks, cuts_output));
    steps.push_back(cuda::PersistentStep::make(stream(), DType::F16, ranks.back()->model));
    ASSERT_TRUE(steps.back()) << rank;
  }
  cuda::PersistentStep::connect(steps);
  std::vector<const cuda::CapturedStep*> of_rank;
  for (const auto& step : steps) of_rank.push_back(step.get());
  cuda::CapturedPlan plan(
      {std::make_move_iterator(steps.begin()), std::make_move_iterator(steps.end())});
  emulated::set_cards(n_ranks);
  for (int64_t i = 0; i < 3; ++i) {
    const auto token = TokenId(i * 67 % kVocab);
    const DecodeRow row{token, c.pos + i, kPages};
    const auto span = plan.step(row);
    const std::vector<float> logits(span.begin(), span.end());
    for (int rank = 0; rank < n_ranks; ++rank) {
      llama.take_cache(rank, *ranks[size_t(rank)]);
      const auto own = of_rank[size_t(rank)]->host_logits();
      EXPECT_EQ(std::vector(own.begin(), own.end()), logits) << "rank " << rank;
    }
    // The ranks have the same residual stream.
    for (int64_t k = kVocab; k < std::ssize(logits); ++k) {
      ASSERT_EQ(logits[size_t(k)], logits[size_t(k % kVocab)]) << k;
    }
    const double error = error_of(logits, llama.logits(token, c.pos + i));
    EXPECT_LE(error, kMostError * 9 / 7) << "step " << i;
    RecordProperty(cat("error_", i), cat(error));
    const auto again = plan.step(row);
    EXPECT_EQ(std::vector(again.begin(), again.end()), logits) << "step " << i;
  }
  emulated::set_cards(1);
}

const RanksCase kRanksCases[] = {
    {{"F16", {}, DType::F16, 64, 96, 4, 2, 32, 2}, 2, true},
    {{"U4Unequal", of_group(DType::U4, DType::F16, false, 32), DType::F16, 64, 96, 2, 2, 64, 200},
     2,
     false},
    {{"U8Three", of_group(DType::U8, DType::F16, false, kRow), DType::U8, 64, 112, 6, 3, 64, 126},
     3,
     false},
};
INSTANTIATE_TEST_SUITE_P(, PersistentRanks, testing::ValuesIn(kRanksCases),
                         [](const auto& info) { return std::string(info.param.of.name); });

}  // namespace
}  // namespace minfer::test
