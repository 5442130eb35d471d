#include "engine/text_generation.h"

#include <algorithm>

namespace minfer {
namespace {

// Every id that ends the text, except those that have no logits.
std::vector<TokenId> end_ids(const Model& model, const GenerateOptions& options) {
  std::vector<TokenId> ids = model.tokenizer->end_ids();
  ids.insert(ids.end(), options.end_ids.begin(), options.end_ids.end());
  std::erase_if(ids, [&model](TokenId id) { return id >= model.n_usable_tokens(); });
  return ids;
}

SamplerOptions sampler_options(const GenerateOptions& options, const std::vector<TokenId>& ends) {
  SamplerOptions sampler = options.sampler;
  if (options.ignore_eos) {
    for (const TokenId id : ends) sampler.logit_bias.emplace_back(id, kNever);
  }
  return sampler;
}

bool is_only_bos(const Model& model, std::span<const TokenId> prompt) {
  return prompt.size() == 1 && prompt[0] == model.tokenizer->bos();
}

}  // namespace

TextGeneration::TextGeneration(const Model& model, std::span<const TokenId> prompt,
                               const GenerateOptions& options, const OnToken& on_token)
    : model_(model),
      options_(options),
      on_token_(on_token),
      ends_(end_ids(model, options)),
      sampler_options_(sampler_options(options, ends_)),
      sampler_(sampler_options_, model.n_usable_tokens()),
      decoder_(*model.tokenizer, is_only_bos(model, prompt), options.show_special),
      stops_(options.stop),
      history_(prompt.begin(), prompt.end()) {
  result_.prompt_tokens = std::ssize(prompt);
}

TokenId TextGeneration::choose(std::span<const float> logits) {
  return sampler_.sample(usable(logits), history_, result_.tokens.size());
}

std::optional<StopReason> TextGeneration::accept(TokenId id, std::span<const float> logits) {
  if (result_.tokens.empty()) result_.first_token_seconds = since_start_.seconds();
  if (std::find(ends_.begin(), ends_.end(), id) != ends_.end()) return StopReason::Eos;
  GeneratedToken token{.id = id, .text = stops_.push(decoder_.push(id)), .top = {}};
  if (options_.n_logprobs > 0) {
    token.logprob = logprob_of(usable(logits), id);
    token.top = top_logprobs(usable(logits), options_.n_logprobs);
  }
  result_.tokens.push_back(id);
  history_.push_back(id);
  emit(std::move(token));
  if (stops_.stopped()) return StopReason::Stop;
  if (std::ssize(result_.tokens) == options_.n_predict) return StopReason::Length;
  return std::nullopt;
}

GenerateResult TextGeneration::finish(StopReason reason) {
  result_.stop_reason = reason;
  const std::string tail = stops_.push(decoder_.flush());
  if (std::string held = tail + stops_.flush(); !held.empty()) {
    emit({.id = -1, .text = std::move(held), .top = {}});
    if (stops_.stopped()) result_.stop_reason = StopReason::Stop;
  }
  return std::move(result_);
}

std::optional<DecodeSampling> TextGeneration::decode_sampling() const {
  const SamplerOptions& o = sampler_options_;
  if (o.has_penalties() || options_.n_logprobs > 0) return std::nullopt;
  DecodeSampling sampling{.temperature = o.temperature,
                          .top_k = o.top_k,
                          .top_p = o.top_p,
                          .min_p = o.min_p,
                          .seed = o.seed,
                          .first_draw = 1,
                          .n_tokens = model_.n_usable_tokens(),
                          .banned = {}};
  for (const auto& [id, bias] : o.logit_bias) {
    if (bias != kNever) return std::nullopt;
    sampling.banned.push_back(id);
  }
  return sampling;
}

void TextGeneration::emit(GeneratedToken token) {
  result_.text += token.text;
  if (on_token_) on_token_(token);
  if (options_.n_logprobs > 0 && token.id >= 0) result_.steps.push_back(std::move(token));
}

}  // namespace minfer
