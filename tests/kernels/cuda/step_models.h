#pragma once

#include <array>

#include "kernels/comm/ring.h"
#include "kernels/cuda/decode/captured_plan.h"
#include "kernels/cuda/decode/persistent/persistent_step.h"
#include "models/weight_slice.h"
#include "tests/kernels/cuda/emulated/emulator.h"
#include "tests/kernels/cuda/step_cases.h"
#include "tests/support/float64_ops.h"
#include "tests/support/moe_cases.h"

// Small models for tests of the persistent decode kernel, and what they compute in float64.
namespace minfer::test {

constexpr int64_t kLayers = 2, kVocab = 201;
constexpr float kEps = 1e-5f;
constexpr int32_t kPages[] = {2, 0, 1};
constexpr int64_t kContext = std::size(kPages) * kPagePositions;
// A step loses most where blocks exchange numbers, whose last four bits hold the epoch: 2^-19 of
// each number at most, in seven vectors a layer. The bound allows each of these losses to count
// twice.
constexpr double kMostError = 2.0 * 7 * kLayers * 0x1p-19;

// A small model with random weights, on the card and in float64.
class SmallModel {
 public:
  explicit SmallModel(const StepCase& c) : c_(c) {
    const int64_t q_dim = c.n_heads * c.head_dim, kv_dim = c.n_kv_heads * c.head_dim;
    uint64_t seed = 1;
    const auto matrix = [&](Linear& to, float64::Values& values, const Format& format,
                            int64_t out_dim, int64_t in_dim) {
      Weights& w =
          weights_.emplace(&to, Weights(format, out_dim, in_dim, seed += 10)).first->second;
      values = values_of(w, out_dim);
      to.weight = std::move(w.matrix);
    };
    const auto vector = [&](DeviceTensor& to, float64::Values& values, int64_t n) {
      const HostTensor weight = random_normal(seed += 10, {n}, DType::F16);
      values = doubles(weight);
      to = to_device(weight);
    };
    edges_.output_norm_eps = kEps;
    for (int i = 0; i < kLayers; ++i) {
      Layer& l = layers_[size_t(i)];
      LayerSpec& spec = l.spec;
      spec = {.n_heads = c.n_heads,
              .n_kv_heads = c.n_kv_heads,
              .head_dim = c.head_dim,
              .ffn_dim = c.ffn_dim,
              .norm_eps = kEps};
      spec.rope = 0;
      if (c.change != nullptr) c.change(i, spec, edges_);
      LayerWeights& w = l.on_card;
      const auto linear = [&](StepWeight weight, Linear& to, Values& of, int64_t out_dim,
                              int64_t in_dim, bool biased) {
        matrix(to, of.weight, c.format_of(i, weight), out_dim, in_dim);
        if (biased) vector(to.bias, of.bias, out_dim);
      };
      const auto norm = [&](Norm& to, Values& of, bool exists) {
        if (exists) vector(to.weight, of.weight, c.dim);
      };
      const bool before = spec.norm_places != NormPlaces::Behind;
      const bool behind = spec.norm_places != NormPlaces::Before;
      norm(w.attn_norm, l.attn_norm, before);
      linear(StepWeight::Q, w.wq, l.wq, q_dim, c.dim, spec.qkv_bias);
      linear(StepWeight::K, w.wk, l.wk, kv_dim, c.dim, spec.qkv_bias);
      linear(StepWeight::V, w.wv, l.wv, kv_dim, c.dim, spec.qkv_bias);
      linear(StepWeight::O, w.wo, l.wo, c.dim, q_dim, spec.attn_out_bias);
      norm(w.ffn_norm, l.ffn_norm, before);
      const auto ffn = [&](Linear& gate, Linear& up, Linear& down, FfnValues& of) {
        linear(StepWeight::GateUp, gate, of.gate, c.ffn_dim, c.dim, spec.ffn_bias);
        linear(StepWeight::GateUp, up, of.up, c.ffn_dim, c.dim, spec.ffn_bias);
        linear(StepWeight::Down, down, of.down, c.dim, c.ffn_dim, spec.ffn_bias);
      };
      if (spec.has_experts()) {
        w.moe.experts.resize(size_t(spec.n_experts));
        l.ffns.resize(w.moe.experts.size());
        for (size_t e = 0; e < l.ffns.size(); ++e) {
          Expert& expert = w.moe.experts[e];
          ffn(expert.w_gate, expert.w_up, expert.w_down, l.ffns[e]);
        }
        matrix(l.router, l.router_values, {}, spec.n_experts, c.dim);
        w.moe.router = std::move(l.router.weight);
        const auto floats = [&](DeviceTensor& to, float64::Values& values) {
          const HostTensor host = random_normal(seed += 10, {spec.n_experts}, DType::F32, 0.3f);
          values = doubles(host);
          to = to_device(host);
        };
        if (spec.router_bias) floats(w.moe.router_bias, l.router_bias);
        if (spec.router_correction) floats(w.moe.router_correction, l.router_correction);
        w.moe.index = index_of(w.moe);
      } else {
        l.ffns.resize(1);
        ffn(w.w_gate, w.w_up, w.w_down, l.ffns.front());
      }
      fill_cache(l.cache, seed += 10);
      norm(w.attn_post_norm, l.attn_post_norm, behind);
      norm(w.ffn_post_norm, l.ffn_post_norm, behind);
      if (spec.qk_norm == QkNorm::None) continue;
      const bool is_whole = spec.qk_norm == QkNorm::WholeWidth;
      vector(w.q_norm.weight, l.q_norm.weight, is_whole ? q_dim : c.head_dim);
      vector(w.k_norm.weight, l.k_norm.weight, is_whole ? kv_dim : c.head_dim);
    }
    vector(output_norm_on_card_.weight, output_norm_, c.dim);
    matrix(output_on_card_, output_, c.format_of(kLayers, StepWeight::Output), kVocab, c.dim);
    Weights table({}, kVocab, c.dim, seed += 10);
    embedding_ = values_of(table, kVocab);
    embedding_on_card_ = std::move(table.matrix);
    const int64_t n_pairs = c.head_dim / 2;
    for (size_t table = 0; table < ropes_.size(); ++table) {
      HostTensor rope(DType::F32, {kContext, n_pairs, 2});
      for (int64_t i = 0; i < kContext * n_pairs; ++i) {
        const int64_t pos = i / n_pairs, pair = i % n_pairs;
        const double theta = table == 0 ? 1e4 : 1e6;
        const double angle = double(pos) * std::pow(theta, -double(pair) / double(n_pairs));
        rope.as<float>()[2 * i] = float(std::cos(angle));
        rope.as<float>()[2 * i + 1] = float(std::sin(angle));
      }
      ropes_[table] = doubles(rope);
      ropes_on_card_[table] = to_device(rope);
    }
  }

  DecodeModel model() {
    DecodeModel model;
    model.max_seq_len = kContext;
    model.embedding = &embedding_on_card_;
    model.rope_tables = {ropes_on_card_[0], ropes_on_card_[1]};
    for (Layer& l : layers_) model.layers.push_back({l.spec, &l.on_card, &l.cache});
    model.edges = edges_;
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
    const int64_t group = c_.mix != nullptr ? kFactorColumns : c_.format.group;
    const int64_t unit = std::max<int64_t>(group, 16), kv_heads = c_.n_kv_heads;
    const auto part = [&](int64_t n, int64_t of) {
      const int64_t begin = chunk_begin(n / of, n_ranks, index) * of;
      return ShardRange{begin, chunk_begin(n / of, n_ranks, index + 1) * of - begin};
    };
    const ShardRange kv = part(kv_heads, 1), ffn = part(c_.ffn_dim, unit);
    const auto times = [](const ShardRange& range, int64_t n) {
      return ShardRange{range.begin * n, range.n * n};
    };
    const int64_t heads_of_kv = c_.n_heads / kv_heads;
    const ShardRange kv_rows = times(kv, c_.head_dim), q_rows = times(kv_rows, heads_of_kv);
    rank->model = model();
    for (size_t i = 0; i < kLayers; ++i) {
      const Layer& whole = layers_[i];
      LayerWeights& own = rank->layers[i];
      for (Norm LayerWeights::*norm :
           {&LayerWeights::attn_norm, &LayerWeights::attn_post_norm, &LayerWeights::ffn_norm,
            &LayerWeights::ffn_post_norm, &LayerWeights::q_norm, &LayerWeights::k_norm}) {
        const DeviceTensor& weight = (whole.on_card.*norm).weight;
        if (weight) (own.*norm).weight = to_device(to_host(weight));
      }
      cut_rows(own.wq, whole.on_card.wq, q_rows);
      cut_rows(own.wk, whole.on_card.wk, kv_rows);
      cut_rows(own.wv, whole.on_card.wv, kv_rows);
      cut_columns(own.wo, whole.on_card.wo, q_rows);
      const auto cut_ffn = [&](auto& to, const auto& of) {
        cut_rows(to.w_gate, of.w_gate, ffn);
        cut_rows(to.w_up, of.w_up, ffn);
        cut_columns(to.w_down, of.w_down, ffn);
      };
      if (whole.spec.has_experts()) {
        const MoeWeights& of = whole.on_card.moe;
        Linear router;
        set(router, weights_of(whole.router).floats);
        own.moe.router = std::move(router.weight);
        own.moe.experts.resize(of.experts.size());
        for (size_t e = 0; e < of.experts.size(); ++e) cut_ffn(own.moe.experts[e], of.experts[e]);
        own.moe.index = index_of(own.moe);
      } else {
        cut_ffn(own, whole.on_card);
      }
      rank->caches[i] = cache_of_heads(whole.cache, kv);
      DecodeLayer& layer = rank->model.layers[i];
      layer.weights = &own;
      layer.cache = &rank->caches[i];
      layer.spec.n_heads = kv.n * heads_of_kv;
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
    for (double& value : x) value *= double(edges_.embedding_scale);
    const auto normed = [](const float64::Values& of, const Values& norm) {
      return norm.weight.empty() ? of : float64::rms_norm(of, norm.weight, double(kEps));
    };
    const auto linear = [](const float64::Values& of, const Values& w) {
      float64::Values y = float64::matmul(of, w.weight, std::ssize(of));
      for (size_t i = 0; i < w.bias.size(); ++i) y[i] += w.bias[i];
      return y;
    };
    for (const Layer& l : layers_) {
      const LayerSpec& spec = l.spec;
      const auto add = [&](const float64::Values& more) {
        for (size_t i = 0; i < x.size(); ++i) x[i] += more[i] * double(spec.residual_scale);
      };
      float64::Values y = normed(x, l.attn_norm);
      const auto turned = [&](const Values& w, const Values& norm, int64_t n_heads) {
        float64::Values heads = normed(linear(y, w), norm);
        if (spec.rope < 0) return heads;
        return float64::rope(std::move(heads), ropes_[size_t(spec.rope)], n_heads, c_.head_dim,
                             c_.head_dim, pos);
      };
      const float64::Values q = turned(l.wq, l.q_norm, c_.n_heads);
      const float64::Values keys = rows(l.cache, 0, pos + 1), values = rows(l.cache, 1, pos + 1);
      expect_rounded(keys, turned(l.wk, l.k_norm, c_.n_kv_heads));
      expect_rounded(values, linear(y, l.wv));
      const auto attended =
          float64::attention(q, keys, values, c_.n_heads, c_.n_kv_heads, c_.head_dim, pos,
                             double(spec.score_scale()), spec.window, double(spec.attn_softcap));
      add(normed(linear(attended.out, l.wo), l.attn_post_norm));
      y = normed(x, l.ffn_norm);
      const auto ffn = [&](const FfnValues& w) {
        float64::Values hidden = linear(y, w.gate);
        const float64::Values up = linear(y, w.up);
        for (size_t i = 0; i < hidden.size(); ++i) {
          hidden[i] = float64::activated(hidden[i], spec.activation) * up[i];
        }
        return linear(hidden, w.down);
      };
      if (!spec.has_experts()) {
        add(normed(ffn(l.ffns.front()), l.ffn_post_norm));
        continue;
      }
      float64::Values sum(x.size(), 0.0);
      for (const auto& [expert, weight] :
           chosen_experts(linear(y, {l.router_values, l.router_bias}), l.router_correction, spec)) {
        const float64::Values out = ffn(l.ffns[expert]);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * out[i];
      }
      add(normed(sum, l.ffn_post_norm));
    }
    float64::Values logits = linear(normed(x, {output_norm_, {}}), {output_, {}});
    for (double& logit : logits) {
      logit = float64::capped(logit * double(edges_.logit_scale), double(edges_.logit_softcap));
    }
    return logits;
  }

 private:
  struct Values {
    float64::Values weight, bias;  // empty: there is none
  };
  struct FfnValues {
    Values gate, up, down;
  };
  struct Layer {
    LayerSpec spec;
    LayerWeights on_card;
    KvLayer cache;
    Values attn_norm, wq, wk, wv, q_norm, k_norm, wo, attn_post_norm, ffn_norm, ffn_post_norm;
    std::vector<FfnValues> ffns;  // one, or the experts
    Linear router;
    float64::Values router_values, router_bias, router_correction;
  };

  static DeviceTensor index_of(const MoeWeights& moe) {
    const std::vector<cuda::ExpertPlace> places = cuda::expert_places(moe);
    HostTensor bytes(DType::U8, {int64_t(places.size() * sizeof(cuda::ExpertPlace))});
    std::memcpy(bytes.view().data, places.data(), size_t(bytes.view().n_bytes()));
    return to_device(bytes);
  }

  const Weights& weights_of(const Linear& linear) const { return weights_.at(&linear); }
  static void set(Linear& to, const HostTensor& floats) {
    to.weight.storage = to_device(floats);
    to.weight.out_dim = floats.view().shape[0];
    to.weight.in_dim = floats.view().shape[1];
    to.weight.dtype = floats.view().dtype;
  }
  static void set_blocks(Linear& to, const HostTensor& blocks) {
    to.weight = pack_products(blocks, to_quantized_matrix(blocks).view());
  }
  void cut_rows(Linear& to, const Linear& whole, const ShardRange& rows) const {
    const Weights& w = weights_of(whole);
    if (whole.bias) {
      const HostTensor bias = to_host(whole.bias);
      HostTensor part(DType::F16, {rows.n});
      std::copy_n(bias.as<f16>() + rows.begin, rows.n, part.as<f16>());
      to.bias = to_device(part);
    }
    if (w.format.group == 0) return set(to, take_rows(w.floats.view(), {&rows, 1}));
    if (w.blocks.view()) return set_blocks(to, take_rows(w.blocks.view(), {&rows, 1}));
    to.weight = pack(take_rows(w.quantized.view(), {&rows, 1}).view());
  }
  void cut_columns(Linear& to, const Linear& whole, const ShardRange& columns) const {
    const Weights& w = weights_of(whole);
    if (whole.bias) to.bias = to_device(to_host(whole.bias));
    if (w.format.group == 0) return set(to, take_columns(w.floats.view(), {&columns, 1}));
    if (w.blocks.view()) return set_blocks(to, take_columns(w.blocks.view(), {&columns, 1}));
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
  EdgeSpec edges_;
  float64::Values embedding_, output_norm_, output_;
  std::array<float64::Values, 2> ropes_;
  Matrix embedding_on_card_;
  Norm output_norm_on_card_;
  Linear output_on_card_;
  std::array<DeviceTensor, 2> ropes_on_card_;
};

inline double error_of(const std::vector<float>& logits, const float64::Values& want) {
  double error = 0, size = 0;
  for (size_t k = 0; k < want.size(); ++k) {
    error += std::pow(double(logits[k]) - want[k], 2);
    size += want[k] * want[k];
  }
  return std::sqrt(error / size);
}

inline std::unique_ptr<DecodePlan> plan_of(const DecodeModel& model,
                                           const cuda::PersistentStep::Tuning& tuning) {
  std::vector<std::unique_ptr<cuda::CapturedStep>> steps;
  steps.push_back(cuda::PersistentStep::make(stream(), DType::F16, model, tuning));
  if (!steps.front()) return nullptr;
  return std::make_unique<cuda::CapturedPlan>(std::move(steps));
}

// Two steps from c.pos on, the second of which reads what the first one has appended to the cache.
// Each is repeated, with other turns of the threads, and must give the same bits.
inline void expect_two_steps(DecodePlan& plan, const SmallModel& small, const StepCase& c,
                             double most_error) {
  for (int64_t i = 0; i < 2; ++i) {
    const auto token = TokenId(i * 67 % kVocab);
    const DecodeRow row{token, c.pos + i, kPages};
    const auto span = plan.step(row);
    const std::vector<float> logits(span.begin(), span.end());
    const double error = error_of(logits, small.logits(token, c.pos + i));
    EXPECT_LE(error, most_error) << "step " << i;
    testing::Test::RecordProperty(cat("error_", i), cat(error));
    const auto again = plan.step(row);
    EXPECT_EQ(std::vector(again.begin(), again.end()), logits) << "step " << i;
  }
}

}  // namespace minfer::test
