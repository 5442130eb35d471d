#include "engine/session.h"

#include <algorithm>
#include <cmath>

#include "engine/forward.h"

namespace minfer {
namespace {

int64_t first_non_finite(std::span<const float> values) {
  const auto found =
      std::find_if_not(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
  return found == values.end() ? -1 : found - values.begin();
}

std::span<const float> as_floats(const HostTensor& tensor) {
  return {tensor.as<const float>(), static_cast<size_t>(tensor.view().n_elements())};
}

SessionOptions checked(SessionOptions options, const ModelConfig& config) {
  if (options.max_seq_len == 0) options.max_seq_len = config.trained_seq_len;
  MINFER_REQUIRE(Usage, options.max_seq_len >= 1 && options.max_seq_len <= config.trained_seq_len,
                 "a context of ", options.max_seq_len, " tokens, the model was trained for ",
                 config.trained_seq_len);
  MINFER_REQUIRE(Usage, options.prefill_chunk >= 1, "a prefill chunk of ", options.prefill_chunk,
                 " tokens, expected 1 or more");
  MINFER_REQUIRE(Usage, options.kv_dtype == DType::F16 || options.kv_dtype == DType::F32,
                 "a KV cache of ", options.kv_dtype, " (supported: F16, F32)");
  options.prefill_chunk = std::min(options.prefill_chunk, options.max_seq_len);
  return options;
}

}  // namespace

struct Session::State {
  ForwardState forward;
  DeviceTensor all_logits;  // [prefill_chunk, vocab_size]; made by the first eval_all
  HostTensor host_logits;   // f32, what the last call returned
};

Session::Session(const Model& model, Backend& backend, const SessionOptions& options)
    : model_(model),
      backend_(backend),
      options_(checked(options, model.config)),
      state_(std::make_unique<State>()) {
  ForwardState& forward = state_->forward;
  forward.kv = make_kv_cache(backend, model.config, options_.kv_dtype, options_.max_seq_len);
  forward.scratch = make_scratch(backend, model.config, options_.prefill_chunk);
  forward.rope_table = make_rope_table(backend, model.config, options_.max_seq_len);
}

Session::~Session() = default;

std::span<const float> Session::eval(std::span<const TokenId> tokens) {
  require_fitting(tokens);
  const auto chunk = static_cast<size_t>(options_.prefill_chunk);
  while (tokens.size() > chunk) {
    const Tensor x = forward_chunk(tokens.first(chunk));
    // No logits here to look at: what went wrong must not hide in the cache.
    if (first_non_finite(as_floats(to_f32_tensor(backend_.download(x)))) >= 0) {
      throw_non_finite(tokens.first(chunk));
    }
    pos_ += std::ssize(tokens.first(chunk));
    tokens = tokens.subspan(chunk);
  }
  const Tensor x = forward_chunk(tokens);
  return finish(tokens, x.rows(x.shape[0] - 1, 1), state_->forward.scratch.logits);
}

std::span<const float> Session::eval_all(std::span<const TokenId> tokens) {
  require_fitting(tokens);
  MINFER_REQUIRE(Usage, std::ssize(tokens) <= options_.prefill_chunk, "logits of ", tokens.size(),
                 " tokens at once, the prefill chunk is ", options_.prefill_chunk);
  if (!state_->all_logits) {
    state_->all_logits = backend_.allocate(backend_.activation_dtype(),
                                           {options_.prefill_chunk, model_.config.vocab_size});
  }
  const Tensor x = forward_chunk(tokens);
  return finish(tokens, x, state_->all_logits.view().rows(0, std::ssize(tokens)));
}

void Session::truncate(int64_t n_tokens) {
  MINFER_CHECK(n_tokens >= 0 && n_tokens <= pos_, "truncate to ", n_tokens, " of ", pos_);
  pos_ = n_tokens;
}

int64_t Session::kv_bytes() const { return state_->forward.kv.n_bytes(); }

void Session::require_fitting(std::span<const TokenId> tokens) const {
  MINFER_REQUIRE(Usage, !tokens.empty(), "no tokens to evaluate");
  MINFER_REQUIRE(Usage, std::ssize(tokens) <= options_.max_seq_len - pos_, tokens.size(),
                 " tokens after ", pos_, " do not fit the context of ", options_.max_seq_len);
  for (const TokenId id : tokens) {
    MINFER_REQUIRE(Usage, id >= 0 && id < model_.config.vocab_size, "token id ", id,
                   " is not below the vocabulary size ", model_.config.vocab_size);
  }
}

Tensor Session::forward_chunk(std::span<const TokenId> tokens) {
  return forward(backend_, model_, state_->forward, tokens, pos_);
}

std::span<const float> Session::finish(std::span<const TokenId> tokens, Tensor x, Tensor logits) {
  output_logits(backend_, model_, x, logits);
  state_->host_logits = backend_.download(logits);
  if (logits.dtype != DType::F32) state_->host_logits = to_f32_tensor(state_->host_logits);
  const std::span<const float> values = as_floats(state_->host_logits);
  if (first_non_finite(values) >= 0) throw_non_finite(tokens);
  pos_ += std::ssize(tokens);
  return values;
}

// Runs the pass again, which writes the same cache, and looks after each block.
void Session::throw_non_finite(std::span<const TokenId> tokens) {
  forward(backend_, model_, state_->forward, tokens, pos_, [&](int64_t layer, Tensor x) {
    const int64_t index = first_non_finite(as_floats(to_f32_tensor(backend_.download(x))));
    MINFER_REQUIRE(Numeric, index < 0, "position ", pos_ + index / model_.config.dim,
                   ": not a finite number after layer ", layer);
  });
  throw Error(ErrorKind::Numeric,
              cat("position ", pos_ + std::ssize(tokens) - 1, ": a logit is not a finite number"));
}

}  // namespace minfer
