#include <algorithm>
#include <iterator>

#include "models/config_reader.h"
#include "models/families/family.h"

namespace minfer {
namespace {

// Top-level keys that the readers of families share, and those that say nothing about what is
// computed: of training, of generation's defaults, of other programs and of the file itself.
constexpr std::string_view kKnownKeys[] = {
    // read
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
    "rms_norm_eps", "vocab_size", "tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act",
    "rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings",
    "sliding_window", "layer_types", "partial_rotary_factor", "num_local_experts", "num_experts",
    "n_routed_experts", "attention_multiplier", "embedding_multiplier", "residual_multiplier",
    "logits_scaling", "logit_scale", "attn_logit_softcapping", "final_logit_softcapping",
    "clip_qkv", "use_qk_norm", "alibi", "quantization_config", "compression_config", "dtype",
    "torch_dtype", "eos_token_id", "bos_token_id", "pad_token_id", "n_embd", "n_inner", "n_layer",
    "n_head", "n_positions", "n_ctx", "layer_norm_epsilon", "activation_function",
    "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "add_cross_attention",
    "no_rope_layers", "no_rope_layer_interval", "use_sliding_window", "max_window_layers",
    "lm_head_bias", "full_attn_mod", "interpolate_factor", "hidden_activation",
    "query_pre_attn_scalar", "rope_local_base_freq", "sliding_window_pattern",
    "use_bidirectional_attention", "layer_norm_eps", "norm_eps", "norm_epsilon", "rotary_pct",
    "rotary_emb_base", "use_parallel_residual", "qk_layernorm", "use_qkv_bias", "use_bias",
    "multi_query", "new_decoder_architecture", "parallel_attn", "bias", "ffn_hidden_size",
    "num_kv_heads", "activation", "apply_residual_connection_post_layernorm", "num_experts_per_tok",
    "norm_topk_prob", "moe_intermediate_size", "shared_expert_intermediate_size",
    "decoder_sparse_step", "mlp_only_layers", "qkv_bias", "n_shared_experts",
    "first_k_dense_replace", "n_group", "topk_group", "routed_scaling_factor", "experts_per_token",
    "swiglu_alpha", "swiglu_limit",
    // without effect here
    "_name_or_path", "_attn_implementation", "_attn_implementation_autoset",
    "_flash_attn_2_enabled", "transformers_version", "transformers_weights", "auto_map",
    "initializer_range", "use_cache", "pretraining_tp", "attention_dropout", "hidden_dropout",
    "hidden_dropout_prob", "attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "reorder_and_upcast_attn", "task_specific_params", "gradient_checkpointing",
    "output_attentions", "output_hidden_states", "return_dict", "return_dict_in_generate",
    "output_scores", "chunk_size_feed_forward", "cross_attention_hidden_size",
    "decoder_start_token_id", "encoder_no_repeat_ngram_size", "finetuning_task", "id2label",
    "label2id", "problem_type", "num_labels", "is_decoder", "is_encoder_decoder", "prefix",
    "pruned_heads", "sep_token_id", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class",
    "torchscript", "use_bfloat16", "bad_words_ids", "begin_suppress_tokens", "suppress_tokens",
    "diversity_penalty", "do_sample", "early_stopping", "exponential_decay_length_penalty",
    "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "max_new_tokens",
    "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "remove_invalid_values", "repetition_penalty", "temperature", "top_k", "top_p", "typical_p",
    "unk_token_id", "max_sequence_length", "model_max_length", "tokenizer_model_max_length",
    "tokenizer_padding_side", "unsloth_version", "unsloth_fixed", "head_size",
    "output_router_logits", "num_nextn_predict_layers", "num_mtp_layers", "router_aux_loss_coef",
    "router_jitter_noise", "transformers" /* .js_config */, "neftune_noise_alpha", "language",
    "license", "cache_implementation", "_sliding_window_pattern", "classifier_dropout",
    "residual_dropout", "embedding_dropout", "num_ln_in_parallel_attn", "initial_context_length"};

}  // namespace

std::vector<std::string> unknown_hf_keys(const Metadata& metadata) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : metadata.all()) {
    const std::string name = key.substr(0, key.find('.'));
    const bool is_new = keys.empty() || keys.back() != name;
    const bool is_known = std::ranges::find(kKnownKeys, name) != std::end(kKnownKeys);
    if (is_new && !is_known) keys.push_back(name);
  }
  return keys;
}

ModelSpec read_hf_spec(const Metadata& metadata) {
  MINFER_REQUIRE(Input, !metadata.all().empty(),
                 "has no configuration: a model is the directory with config.json");
  const Family& family = family_of_hf(metadata);
  ModelSpec spec = family.read_hf(metadata);
  spec.family = family.name;
  spec.vocab_size = read_vocab_size(metadata, "vocab_size");
  return spec;
}

}  // namespace minfer
