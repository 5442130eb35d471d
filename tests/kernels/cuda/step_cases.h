#pragma once

#include <ostream>

#include "kernels/layer.h"
#include "tests/kernels/cuda/weights.h"

// The shapes, fields and formats of the small models of step_models.h.
namespace minfer::test {

enum class StepWeight { Q, K, V, O, GateUp, Down, Output };
struct StepCase {
  const char* name;
  Format format;
  DType cache;
  int64_t dim, ffn_dim, n_heads, n_kv_heads, head_dim;
  int64_t pos;  // position of the first step; the cache is random before it
  // Sets what is not neutral in a layer, or before and after all.
  void (*change)(int layer, LayerSpec& spec, EdgeSpec& edges) = nullptr;
  // The format of each matrix, where they differ.
  Format (*mix)(int layer, StepWeight weight) = nullptr;

  Format format_of(int layer, StepWeight weight) const {
    return mix == nullptr ? format : mix(layer, weight);
  }
};
inline std::ostream& operator<<(std::ostream& out, const StepCase& c) { return out << c.name; }

inline void like_gemma_2(int layer, LayerSpec& spec, EdgeSpec& edges) {
  spec.norm_places = NormPlaces::Both;
  spec.activation = Activation::GeluTanh;
  spec.attn_scale = 0.1f;
  spec.attn_softcap = 1.5f;
  spec.window = layer == 0 ? 50 : 0;
  edges.embedding_scale = 8;
  edges.logit_softcap = 2;
}
inline void like_gemma_3(int layer, LayerSpec& spec, EdgeSpec& edges) {
  spec.norm_places = NormPlaces::Both;
  spec.activation = Activation::GeluTanh;
  spec.qk_norm = QkNorm::PerHead;
  spec.window = layer == 0 ? 150 : 0;
  spec.rope = layer;
  spec.residual_scale = 0.7f;
  edges.embedding_scale = 8;
}
// And a layer without rotation.
inline void like_olmo_2(int layer, LayerSpec& spec, EdgeSpec&) {
  spec.norm_places = NormPlaces::Behind;
  spec.qk_norm = QkNorm::WholeWidth;
  spec.rope = layer == 0 ? -1 : 0;
}
inline void like_granite(int, LayerSpec& spec, EdgeSpec& edges) {
  spec.attn_scale = 0.03f;
  spec.residual_scale = 0.22f;
  edges.embedding_scale = 12;
  edges.logit_scale = 0.0625f;
}
inline void with_biases(int, LayerSpec& spec, EdgeSpec&) {
  spec.qkv_bias = spec.attn_out_bias = spec.ffn_bias = true;
  spec.qk_norm = QkNorm::PerHead;
  spec.activation = Activation::GeluErf;
}

inline void like_mixtral(int, LayerSpec& spec, EdgeSpec&) {
  spec.n_experts = 3;
  spec.n_active_experts = 2;
  spec.renormalizes_experts = true;
}
inline void with_norms_around_experts(int layer, LayerSpec& spec, EdgeSpec& edges) {
  like_mixtral(layer, spec, edges);
  spec.norm_places = NormPlaces::Both;
}
inline void like_qwen3_moe(int, LayerSpec& spec, EdgeSpec&) {
  spec.qk_norm = QkNorm::PerHead;
  spec.n_experts = 12;
  spec.n_active_experts = 3;
  spec.renormalizes_experts = true;
}
// Weights that do not sum to 1.
inline void like_olmoe(int, LayerSpec& spec, EdgeSpec&) {
  spec.qk_norm = QkNorm::WholeWidth;
  spec.n_experts = 7;
  spec.n_active_experts = 3;
}
// Sigmoid scores with a correction, and more logits than a warp has lanes.
inline void like_glm_4(int, LayerSpec& spec, EdgeSpec&) {
  spec.n_experts = 33;
  spec.n_active_experts = 5;
  spec.router_score = RouterScore::Sigmoid;
  spec.router_bias = spec.router_correction = spec.renormalizes_experts = true;
  spec.router_scale = 1.5f;
}

// GGUF's mixes of K-quants.
inline Format of_products(DType dtype) {
  for (const Format& format : product_formats()) {
    if (format.weights == dtype) return format;
  }
  throw Error(ErrorKind::Internal, cat("products of ", dtype));
}
inline Format like_q4_k_m(int layer, StepWeight weight) {
  const bool has_more_bits = weight == StepWeight::V || weight == StepWeight::Down;
  const bool is_q6 = weight == StepWeight::Output || (has_more_bits && layer == 1);
  return of_products(is_q6 ? DType::Q6_K : DType::Q4_K);
}
inline Format like_q3_k_m(int layer, StepWeight weight) {
  if (weight == StepWeight::Output) return of_products(DType::Q6_K);
  if (weight == StepWeight::V || weight == StepWeight::Down) {
    return of_products(layer == 0 ? DType::Q5_K : DType::Q4_K);
  }
  return of_products(weight == StepWeight::O ? DType::Q4_K : DType::Q3_K);
}
// Of eight experts.
inline Format like_q4_k_m_of_mixtral(int layer, StepWeight weight) {
  if (weight == StepWeight::K || weight == StepWeight::V) {
    return of_group(DType::U8, DType::F16, false, 32);
  }
  return weight == StepWeight::O ? of_products(DType::Q5_K) : like_q4_k_m(layer, weight);
}
inline Format like_q2_k(int, StepWeight weight) {
  if (weight == StepWeight::Output) return of_products(DType::Q6_K);
  const bool has_more_bits = weight == StepWeight::V || weight == StepWeight::Down;
  return of_products(has_more_bits ? DType::Q3_K : DType::Q2_K);
}
inline Format like_q5_k(int, StepWeight weight) {
  return of_products(weight == StepWeight::Output ? DType::Q6_K : DType::Q5_K);
}
inline Format like_iq4_xs(int layer, StepWeight weight) {
  if (weight == StepWeight::Output) return of_products(DType::Q6_K);
  const bool has_more_bits = weight == StepWeight::V || weight == StepWeight::Down;
  return of_products(has_more_bits && layer == 0 ? DType::Q5_K : DType::IQ4_XS);
}

// Formats with minimums in F32: GGUF's Q4_1 and Q5_1, and AWQ's, whose groups are several pieces.
inline Format like_q4_1(int layer, StepWeight weight) {
  if (weight == StepWeight::Output) return of_group(DType::U8, DType::F16, false, 32);
  const bool has_more_bits = weight == StepWeight::V || weight == StepWeight::Down;
  const bool is_q5 = has_more_bits && layer == 1;
  return of_group(is_q5 ? DType::U8 : DType::U4, DType::F16, true, 32);
}
inline Format like_awq(int, StepWeight weight) {
  return weight == StepWeight::Output ? Format{} : of_group(DType::U4, DType::F16, true, 128);
}
inline Format like_iq4_nl(int layer, StepWeight weight) {
  if (weight == StepWeight::Output) return of_products(DType::Q6_K);
  const bool has_more_bits = weight == StepWeight::V && layer == 0;
  return has_more_bits ? of_products(DType::Q5_K) : kTableFormats[0];
}

// As `minfer quantize` makes them; a group of 64 would be a whole row of these models.
inline Format int4_with_u8_output(int, StepWeight weight) {
  return weight == StepWeight::Output ? of_group(DType::U8, DType::F16, false, kRow)
                                      : of_group(DType::U4, DType::F16, false, 32);
}
inline Format int8_with_f16_output(int, StepWeight weight) {
  return weight == StepWeight::Output ? Format{} : of_group(DType::U8, DType::F16, false, 32);
}

inline const StepCase kCases[] = {
    {"F16", {}, DType::F16, 64, 96, 4, 2, 32, 2},
    {"F16OverTwoPages", {}, DType::F16, 64, 96, 6, 2, 64, 255},
    {"U4", of_group(DType::U4, DType::F16, false, 32), DType::F16, 64, 192, 2, 2, 64, 200},
    {"FewRows", of_group(DType::U8, DType::F16, false, kRow), DType::F16, 16, 16, 1, 1, 16, 2},
    {"Int4U8Output", {}, DType::F16, 64, 192, 2, 2, 64, 2, nullptr, int4_with_u8_output},
    {"U8F16Output", {}, DType::F16, 64, 192, 2, 2, 64, 2, nullptr, int8_with_f16_output},
    {"U4InParts", of_group(DType::U4, DType::F16, false, 64), DType::U8, 1088, 128, 4, 2, 64, 127},
    {"U8InParts", of_group(DType::U8, DType::F16, false, kRow), DType::U8, 576, 128, 2, 2, 128,
     127},
    {"F16InRounds", {}, DType::F16, 64, 800, 2, 2, 32, 2},
    // Two rows in a stage, many stages of a block, and two in down; parts of a row in down.
    {"F16InPairs", {}, DType::F16, 1048, 96, 2, 2, 32, 2},
    {"F16FewPairs", {}, DType::F16, 16, 1048, 1, 1, 16, 2},
    {"F16InParts", {}, DType::F16, 64, 2144, 2, 2, 32, 2},
    {"U4QkvInRounds", of_group(DType::U4, DType::F16, false, 32), DType::F16, 64, 96, 6, 6, 96, 2},
    // Gate and up in two rounds, the first with K splits of a pair; more columns of down than
    // registers hold.
    {"U8InRounds", of_group(DType::U8, DType::F16, false, kRow), DType::F16, 576, 800, 2, 2, 64, 2},
    {"U4ManyColumns", of_group(DType::U4, DType::F16, false, 32), DType::F16, 64, 16480, 2, 2, 32,
     2},
    // A plain block whose down has 13 words of input for a lane.
    {"U4WideDown", of_group(DType::U4, DType::F16, false, 64), DType::F16, 64, 12352, 2, 2, 32, 2},
    {"Gemma2", of_group(DType::U4, DType::F16, false, 32), DType::F16, 96, 128, 2, 1, 256, 200,
     like_gemma_2},
    {"Gemma2Codes", of_group(DType::U8, DType::F16, false, kRow), DType::U8, 96, 128, 4, 2, 128,
     140, like_gemma_2},
    {"Gemma3", {}, DType::U8, 64, 96, 2, 1, 256, 200, like_gemma_3},
    {"HeadsOf192", of_group(DType::U8, DType::F16, false, kRow), DType::U8, 64, 96, 2, 2, 192, 130},
    // Fewer tiles of q, k and v than blocks.
    {"NormsBehindFewRows", of_group(DType::U8, DType::F16, false, kRow), DType::F16, 64, 96, 1, 1,
     16, 2, like_gemma_2},
    {"Olmo2", of_group(DType::U4, DType::F16, false, 32), DType::F16, 64, 192, 2, 2, 128, 130,
     like_olmo_2},
    {"Granite", {}, DType::F16, 64, 96, 4, 1, 32, 150, like_granite},
    {"Qwen", of_group(DType::U4, DType::F16, false, 64), DType::U8, 1088, 128, 4, 2, 64, 127,
     with_biases},
    // A stage of down ends one expert and begins the next, or holds whole ones.
    {"Qwen3Moe", of_group(DType::U4, DType::F16, false, 32), DType::F16, 64, 768, 4, 2, 64, 130,
     like_qwen3_moe},
    {"SmallExperts", of_group(DType::U4, DType::F16, false, 64), DType::U8, 128, 512, 1, 1, 64, 2,
     like_glm_4},
    {"FloatExperts", {}, DType::F16, 64, 96, 2, 1, 32, 2, with_norms_around_experts},
    {"Olmoe", of_group(DType::U4, DType::F16, false, 32), DType::F16, 64, 576, 2, 2, 64, 2,
     like_olmoe},
    {"Iq4NlExperts", kTableFormats[0], DType::F16, 64, 576, 2, 2, 64, 2, like_olmoe},
    {"U8Experts", of_group(DType::U8, DType::F16, false, 32), DType::F16, 128, 576, 2, 2, 64, 2,
     like_mixtral},
    {"Q4KMExperts", {}, DType::F16, 256, 768, 4, 1, 64, 2, like_qwen3_moe, like_q4_k_m},
    {"Q4KMMixtral", {}, DType::F16, 256, 512, 4, 2, 64, 2, like_mixtral, like_q4_k_m_of_mixtral},
    {"Q4KMBiases", {}, DType::F16, 256, 512, 4, 2, 64, 2, with_biases, like_q4_k_m_of_mixtral},
    {"Iq4XsExperts", {}, DType::U8, 256, 512, 4, 1, 64, 2, like_olmoe, like_iq4_xs},
    {"Q4KM", {}, DType::F16, 256, 1280, 4, 2, 64, 130, nullptr, like_q4_k_m},
    {"Q3KM", {}, DType::U8, 1280, 256, 4, 4, 64, 2, nullptr, like_q3_k_m},
    {"Q2K", {}, DType::F16, 1280, 512, 4, 2, 128, 130, nullptr, like_q2_k},
    {"Q2KExperts", {}, DType::F16, 256, 768, 4, 1, 64, 2, like_qwen3_moe, like_q2_k},
    {"Iq4Xs", {}, DType::F16, 256, 512, 4, 2, 64, 2, nullptr, like_iq4_xs},
    {"Q41", {}, DType::F16, 576, 1120, 3, 1, 64, 2, nullptr, like_q4_1},
    {"AwqBiases", {}, DType::U8, 1280, 512, 4, 2, 64, 130, with_biases, like_awq},
    {"Iq4Nl", {}, DType::F16, 256, 1088, 4, 2, 64, 2, nullptr, like_iq4_nl},
    {"Q4KMGemma", {}, DType::F16, 256, 768, 2, 2, 128, 140, like_gemma_2, like_q4_k_m},
};

}  // namespace minfer::test
