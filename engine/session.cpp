#include "engine/session.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/decode_model.h"
#include "engine/forward.h"

namespace minfer {
namespace {

int64_t first_non_finite(std::span<const float> values) {
  // Most often there is none, which a loop without a way out tells in a tenth of the time.
  uint32_t found_one = 0;
  for (const float x : values) {
    found_one |= uint32_t{(std::bit_cast<uint32_t>(x) & 0x7f800000u) == 0x7f800000u};
  }
  if (found_one == 0) return -1;
  return std::find_if_not(values.begin(), values.end(), [](float x) { return std::isfinite(x); }) -
         values.begin();
}

SessionOptions checked(SessionOptions options, const ModelSpec& spec, const Backend& backend) {
  require_computable(spec);
  for (const LayerSpec& layer : spec.layers) backend.require_supported(layer);
  if (options.max_seq_len == 0) options.max_seq_len = spec.trained_seq_len;
  MINFER_REQUIRE(Usage, options.max_seq_len >= 1 && options.max_seq_len <= spec.trained_seq_len,
                 "a context of ", options.max_seq_len, " tokens, the model was trained for ",
                 spec.trained_seq_len);
  if (options.prefill_chunk == 0) options.prefill_chunk = backend.preferred_chunk();
  MINFER_REQUIRE(Usage, options.prefill_chunk >= 1, "a prefill chunk of ", options.prefill_chunk,
                 " tokens, expected 1 or more");
  MINFER_REQUIRE(Usage,
                 options.kv_dtype == DType::F16 || options.kv_dtype == DType::F32 ||
                     options.kv_dtype == DType::U8,
                 "a KV cache of ", options.kv_dtype, " (supported: F16, F32, U8)");
  if (!options.several_sequences) {
    options.prefill_chunk = std::min(options.prefill_chunk, options.max_seq_len);
  }
  return options;
}

}  // namespace

SessionMemory session_memory(const ModelSpec& spec, const Backend& backend,
                             const SessionOptions& options) {
  const SessionOptions o = checked(options, spec, backend);
  int64_t activation_bytes =
      checked_add(scratch_bytes(spec, backend.activation_dtype(), o.prefill_chunk),
                  rope_table_bytes(spec, o.max_seq_len));
  if (o.all_logits) {
    activation_bytes =
        checked_add(activation_bytes, bytes_of(DType::F32, {o.prefill_chunk, spec.vocab_size}));
  }
  int64_t workspace_bytes = 0;  // one for all layers
  for (const LayerSpec& layer : spec.layers) {
    workspace_bytes =
        std::max(workspace_bytes, backend.attention_workspace_bytes(o.kv_dtype, layer.n_kv_heads,
                                                                    layer.head_dim, o.max_seq_len));
  }
  return {.n_positions = o.max_seq_len,
          .kv_bytes = kv_cache_bytes(spec, o.kv_dtype, o.max_seq_len),
          .kv_bytes_as_int8 = kv_cache_bytes(spec, DType::U8, o.max_seq_len),
          .activation_bytes = checked_add(activation_bytes, workspace_bytes)};
}

struct Session::State {
  ForwardState forward;
  std::unique_ptr<DecodePlan> plan;
  bool plan_asked_for = false;
  std::vector<double> nll;  // of the last score
  DeviceTensor all_logits;  // [prefill_chunk, vocab_size]; made when first asked for
  HostTensor host;          // what was fetched last; grows to the largest that was asked for
};

Session::Session(const Model& model, Backend& backend, const SessionOptions& options)
    : model_(model),
      backend_(backend),
      options_(checked(options, model.spec, backend)),
      state_(std::make_unique<State>()) {
  ForwardState& forward = state_->forward;
  forward.kv = make_kv_cache(backend, model.spec, options_.kv_dtype, options_.max_seq_len);
  forward.scratch = make_scratch(backend, model.spec, options_.prefill_chunk);
  forward.rope_tables = make_rope_tables(backend, model.spec, options_.max_seq_len);
  if (options_.all_logits) all_logits(0);
}

Session::~Session() = default;

std::span<const float> Session::eval(std::span<const TokenId> tokens) {
  require_fitting(tokens);
  if (tokens.size() == 1 && decode_plan() != nullptr) return decode(tokens.front());
  const auto chunk = static_cast<size_t>(options_.prefill_chunk);
  report_progress(std::ssize(tokens));
  while (tokens.size() > chunk) {
    backend_.throw_if_cancelled();
    pass_without_logits(tokens.first(chunk));
    tokens = tokens.subspan(chunk);
  }
  backend_.throw_if_cancelled();
  const Tensor x = forward_last(backend_, model_, state_->forward, tokens, pos_, 1);
  return fetch(finish(tokens, x, state_->forward.scratch.logits));
}

std::span<const float> Session::eval_all(std::span<const TokenId> tokens, int64_t first) {
  const Tensor logits = logits_of(tokens, first);
  return logits ? fetch(logits) : std::span<const float>();
}

std::span<const float> Session::eval_sequences(std::span<const Sequence> sequences) {
  return fetch(logits_of(sequences));
}

std::span<const double> Session::score(std::span<const TokenId> tokens, int64_t first,
                                       std::span<const TokenId> targets) {
  return nll_of(logits_of(tokens, first), targets);
}

std::span<const double> Session::score_sequences(std::span<const Sequence> sequences,
                                                 std::span<const TokenId> targets) {
  return nll_of(logits_of(sequences), targets);
}

std::span<const double> Session::nll_of(Tensor logits, std::span<const TokenId> targets) {
  state_->nll.resize(targets.size());
  if (!targets.empty()) backend_.negative_log_likelihoods(state_->nll, logits, targets);
  return state_->nll;
}

Tensor Session::logits_of(std::span<const TokenId> tokens, int64_t first) {
  require_fitting(tokens);
  const int64_t n_tokens = std::ssize(tokens), n_rows = n_tokens - first;
  MINFER_CHECK(first >= 0 && n_rows >= 0, "logits from token ", first, " of ", n_tokens);
  require_one_pass(n_tokens);
  if (n_rows == 0) {
    pass_without_logits(tokens);
    return {};
  }
  const Tensor x = forward_last(backend_, model_, state_->forward, tokens, pos_, n_rows);
  return finish(tokens, x, all_logits(n_rows));
}

Tensor Session::logits_of(std::span<const Sequence> sequences) {
  MINFER_CHECK(!sequences.empty(), "no sequences to evaluate");
  truncate(0);
  std::vector<TokenId> tokens;
  std::vector<int64_t> lengths;
  int64_t n_rows = 0;
  for (const Sequence& sequence : sequences) {
    require_fitting(sequence.tokens);
    tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    lengths.push_back(std::ssize(sequence.tokens));
    MINFER_CHECK(sequence.first >= 0 && sequence.first <= lengths.back(), "logits from token ",
                 sequence.first, " of ", lengths.back());
    n_rows += lengths.back() - sequence.first;
  }
  require_one_pass(std::ssize(tokens));
  const Tensor x = forward_sequences(backend_, model_, state_->forward, tokens, lengths);
  const Tensor logits = all_logits(n_rows);
  int64_t begin = 0, row = 0;
  for (size_t i = 0; i < sequences.size(); begin += lengths[i], ++i) {
    const int64_t first = sequences[i].first, n = lengths[i] - first;
    if (n > 0)
      output_logits(backend_, model_, state_->forward, x.rows(begin + first, n),
                    logits.rows(row, n));
    row += n;
  }
  MINFER_REQUIRE(Numeric, backend_.first_non_finite(logits) < 0, "a logit is not a finite number");
  return logits;
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
    MINFER_REQUIRE(Usage, id >= 0 && id < model_.spec.vocab_size, "token id ", id,
                   " is not below the vocabulary size ", model_.spec.vocab_size);
  }
}

void Session::require_one_pass(int64_t n_tokens) const {
  MINFER_REQUIRE(Usage, n_tokens <= options_.prefill_chunk, "logits of ", n_tokens,
                 " tokens at once, the prefill chunk is ", options_.prefill_chunk);
}

Tensor Session::all_logits(int64_t n_rows) {
  DeviceTensor& logits = state_->all_logits;
  if (!logits) {
    logits = backend_.allocate(DType::F32, {options_.prefill_chunk, model_.spec.vocab_size});
  }
  return logits.view().rows(0, n_rows);
}

DecodePlan* Session::decode_plan() {
  if (!state_->plan_asked_for && options_.fused_decode) {
    state_->plan = backend_.plan_decode(decode_model(model_, state_->forward));
  }
  state_->plan_asked_for = true;
  return state_->plan.get();
}

std::span<const float> Session::decode(TokenId token) {
  const std::span<const float> logits = state_->plan->step(token, pos_);
  if (first_non_finite(logits) >= 0) throw_non_finite({&token, 1}, 0);
  ++pos_;
  return logits;
}

std::optional<Session::TokenRun> Session::run_from(TokenId token, int64_t n_steps,
                                                   const DecodeSampling& sampling) {
  require_fitting({&token, 1});
  MINFER_CHECK(n_steps >= 1 && n_steps <= options_.max_seq_len - pos_, n_steps, " steps at ", pos_,
               " of ", options_.max_seq_len);
  DecodePlan* const plan = decode_plan();
  if (plan == nullptr) return std::nullopt;
  std::unique_ptr<DecodeRun> run = plan->start(token, pos_, n_steps, sampling);
  if (run == nullptr) return std::nullopt;
  return TokenRun(*this, token, std::move(run));
}

TokenId Session::TokenRun::next() {
  MINFER_CHECK(run_ != nullptr, "a token of a run that has failed");
  const TokenId id = run_->next();
  if (id < 0) {
    run_.reset();  // nothing may be under way when the pass runs again
    session_->throw_non_finite({&last_, 1}, 0);
  }
  ++session_->pos_;
  return last_ = id;
}

void Session::report_progress(int64_t n_tokens) {
  std::function<void()>& after_block = state_->forward.after_block;
  after_block = nullptr;
  if (!options_.progress || n_tokens <= 1) return;
  const int64_t total = ceil_div(n_tokens, options_.prefill_chunk) * model_.spec.n_layers();
  after_block = [this, total, done = int64_t{0}]() mutable {
    done = std::min(done + 1, total);
    options_.progress(done, total);
  };
}

void Session::pass_without_logits(std::span<const TokenId> tokens) {
  // No logits here to look at: what went wrong must not hide in the cache. Keys and values of the
  // last block are left to the logits of later tokens.
  const Tensor x = forward_to_cache(backend_, model_, state_->forward, tokens, pos_);
  const int64_t index = backend_.first_non_finite(x);
  if (index >= 0) throw_non_finite(tokens, index / model_.spec.dim);
  pos_ += std::ssize(tokens);
}

Tensor Session::finish(std::span<const TokenId> tokens, Tensor x, Tensor logits) {
  output_logits(backend_, model_, state_->forward, x, logits);
  const int64_t index = backend_.first_non_finite(logits);
  if (index >= 0) {
    const int64_t first = std::ssize(tokens) - logits.shape[0];
    throw_non_finite(tokens, first + index / logits.shape[1]);
  }
  pos_ += std::ssize(tokens);
  return logits;
}

std::span<const float> Session::fetch(Tensor device) {
  HostTensor& host = state_->host;
  const int64_t n = device.n_elements();
  if (!host.view() || host.view().n_elements() < n) host = HostTensor(DType::F32, {n});
  const Tensor values = host.view().rows(0, n);
  backend_.download_into(values, device.reshaped({n}));
  return {values.as<const float>(), static_cast<size_t>(n)};
}

// Runs the pass again, which writes the same cache, and looks after each block.
void Session::throw_non_finite(std::span<const TokenId> tokens, int64_t row) {
  forward(backend_, model_, state_->forward, tokens, pos_, [&](int64_t layer, Tensor x) {
    const int64_t index = backend_.first_non_finite(x);
    MINFER_REQUIRE(Numeric, index < 0, "position ", pos_ + index / model_.spec.dim,
                   ": not a finite number after layer ", layer);
  });
  throw Error(ErrorKind::Numeric, cat("position ", pos_ + row, ": a logit is not a finite number"));
}

}  // namespace minfer
