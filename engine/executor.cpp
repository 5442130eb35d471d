#include "engine/executor.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/decode_model.h"
#include "engine/forward.h"
#include "kernels/comm/rank_group.h"
#include "models/shards.h"

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
  if (options.max_seq_len == 0) options.max_seq_len = spec.trained_seq_len;
  MINFER_REQUIRE(Usage, options.max_seq_len >= 1 && options.max_seq_len <= spec.trained_seq_len,
                 "a context of ", options.max_seq_len, " tokens, the model was trained for ",
                 spec.trained_seq_len);
  MINFER_REQUIRE(Usage, options.n_sequences >= 1, options.n_sequences, " sequences at once");
  if (options.prefill_chunk == 0) options.prefill_chunk = backend.preferred_chunk();
  MINFER_REQUIRE(Usage, options.prefill_chunk >= 1, "a prefill chunk of ", options.prefill_chunk,
                 " tokens, expected 1 or more");
  MINFER_REQUIRE(Usage,
                 options.kv_dtype == DType::F16 || options.kv_dtype == DType::F32 ||
                     options.kv_dtype == DType::U8,
                 "a KV cache of ", options.kv_dtype, " (supported: F16, F32, U8)");
  if (!options.several_sequences) {
    const int64_t most_rows = std::max(options.max_seq_len, options.n_sequences);
    options.prefill_chunk = std::min(options.prefill_chunk, most_rows);
  }
  return options;
}

// The most positions that a query sees in any layer; 0: all of them.
int64_t widest_window(const ModelSpec& spec, int64_t max_seq_len) {
  int64_t widest = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.window == 0 || layer.window >= max_seq_len) return 0;
    widest = std::max(widest, layer.window);
  }
  return widest;
}

// Rows whose logits are made at once.
int64_t logit_rows(const SessionOptions& o, const Backend& backend) {
  if (o.all_logits) return o.prefill_chunk;
  const int64_t of_sequences = std::min(o.n_sequences, backend.preferred_decode_rows());
  return std::min(std::max(of_sequences, o.n_draft_tokens + 1), o.prefill_chunk);
}

int64_t cache_pages(const SessionOptions& o, const ModelSpec& spec) {
  const int64_t of_one = pages_of_sequence(spec, o.max_seq_len, o.prefill_chunk);
  const int64_t of_all = checked_mul(o.n_sequences, of_one);
  // The last page of each is not full: for some of them.
  return o.several_sequences ? std::max(of_all, pages_for(o.prefill_chunk) + 4) : of_all;
}

struct RowRange {
  int64_t begin, n;
};

// The rows of a pass whose logits are wanted. Adjacent rows stand together: the output matrix is
// read once for all of them.
std::vector<RowRange> rows_with_logits(std::span<const SequenceTokens> parts) {
  std::vector<RowRange> ranges;
  int64_t end = 0;
  for (const SequenceTokens& part : parts) {
    end += std::ssize(part.tokens);
    const int64_t first = end - part.n_logits;
    if (part.n_logits == 0) continue;
    if (!ranges.empty() && ranges.back().begin + ranges.back().n == first) {
      ranges.back().n += part.n_logits;
    } else {
      ranges.push_back({first, part.n_logits});
    }
  }
  return ranges;
}

}  // namespace

int64_t pages_of_sequence(const ModelSpec& spec, int64_t max_seq_len, int64_t chunk) {
  return most_pages(max_seq_len, widest_window(spec, max_seq_len), chunk);
}

SessionMemory session_memory(const ModelSpec& spec, const Backend& backend,
                             const SessionOptions& options) {
  const SessionOptions o = checked(options, spec, backend);
  int64_t activation_bytes =
      checked_add(scratch_bytes(spec, backend.activation_dtype(), o.prefill_chunk),
                  rope_table_bytes(spec, o.max_seq_len));
  const int64_t n_logit_rows = logit_rows(o, backend);
  if (n_logit_rows > 1) {
    activation_bytes =
        checked_add(activation_bytes, bytes_of(DType::F32, {n_logit_rows, spec.vocab_size}));
  }
  activation_bytes =
      checked_add(activation_bytes,
                  backend.ranks_workspace_bytes(o.prefill_chunk, spec.dim,
                                                checked_mul(n_logit_rows, spec.n_output_rows())));
  const int64_t n_pages = cache_pages(o, spec);
  // Each is one for all layers.
  int64_t workspace_bytes = 0, ffn_bytes = 0, moe_bytes = 0, residual_bytes = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.has_norm_behind() || layer.residual_scale != 1) {
      residual_bytes = backend.residual_workspace_bytes(o.prefill_chunk, spec.dim);
    }
    if (layer.gated) {
      const int64_t n_rows = layer.has_experts()
                                 ? checked_mul(o.prefill_chunk, layer.n_active_experts)
                                 : o.prefill_chunk;
      ffn_bytes = std::max({ffn_bytes, backend.ffn_workspace_bytes(n_rows, layer.ffn_dim),
                            backend.ffn_workspace_bytes(o.prefill_chunk, layer.shared_ffn_dim)});
    }
    if (layer.has_experts()) {
      moe_bytes = std::max(moe_bytes, backend.allocated_bytes(backend.moe_workspace_bytes(
                                          o.prefill_chunk, spec.dim, layer)));
    }
    workspace_bytes = std::max(
        workspace_bytes,
        backend.attention_workspace_bytes(o.kv_dtype, layer.n_kv_heads, layer.head_dim, n_pages));
  }
  return {.n_positions = o.max_seq_len,
          .kv_bytes = kv_cache_bytes(backend, spec, o.kv_dtype, n_pages),
          .kv_bytes_as_int8 = kv_cache_bytes(backend, spec, DType::U8, n_pages),
          .activation_bytes =
              checked_add(activation_bytes, checked_add(checked_add(workspace_bytes, ffn_bytes),
                                                        checked_add(moe_bytes, residual_bytes))),
          .n_rows = o.prefill_chunk,
          .n_logit_rows = n_logit_rows};
}

SessionMemory session_memory(const OpenedModel& opened, const Backend& backend,
                             const SessionOptions& options) {
  if (!opened.shards) return session_memory(opened.model.spec, backend, options);
  const bool is_on_card = backend.free_device_bytes().has_value();
  const auto memory_of = [&](int i) {
    return session_memory(opened.shards->spec(backend.rank() + i), backend, options);
  };
  SessionMemory all = memory_of(0);
  for (int i = 1; i < backend.n_ranks_here(); ++i) {
    const SessionMemory more = memory_of(i);
    const auto add = [&](int64_t SessionMemory::*bytes) {
      all.*bytes =
          is_on_card ? std::max(all.*bytes, more.*bytes) : checked_add(all.*bytes, more.*bytes);
    };
    add(&SessionMemory::kv_bytes);
    add(&SessionMemory::kv_bytes_as_int8);
    add(&SessionMemory::activation_bytes);
  }
  return all;
}

// What one rank has of a session: all of it, if there is but one.
struct Executor::Rank {
  const Model* model = nullptr;
  Backend* backend = nullptr;
  ForwardState forward;
  DeviceTensor all_logits;  // [.., vocab_size]; grows to the most rows that were asked for

  // [n_rows, vocab_size]
  Tensor logits_buffer(int64_t n_rows) {
    if (n_rows == 1) return forward.scratch.logits.view();
    if (!all_logits || all_logits.view().shape[0] < n_rows) {
      all_logits = {};
      all_logits = backend->allocate(DType::F32, {n_rows, model->spec.vocab_size});
    }
    return all_logits.view().rows(0, n_rows);
  }
};

struct Executor::State {
  std::vector<Rank> ranks;
  std::unique_ptr<DecodePlan> plan;
  std::unique_ptr<RowsPlan> rows_plan;
  bool plan_asked_for = false, rows_plan_asked_for = false;
  TokenId chosen = 0;  // by the step of one token
  HostTensor host;     // what was fetched last; grows to the largest that was asked for

  ForwardState& forward() { return ranks.front().forward; }
};

template <typename F>
void Executor::on_ranks(F f) {
  on_all_ranks(backend_, [&](int rank, Backend&) { f(state_->ranks[static_cast<size_t>(rank)]); });
}

Executor::Executor(const Model& model, Backend& backend, const SessionOptions& options)
    : model_(model),
      backend_(backend),
      options_(checked(options, model.spec, backend)),
      n_pages_(cache_pages(options_, model.spec)),
      pool_(n_pages_),
      state_(std::make_unique<State>()) {
  const int n_here = backend.n_ranks_here();
  MINFER_CHECK(std::ssize(model.other_ranks) + 1 == n_here, "a model of ",
               model.other_ranks.size() + 1, " ranks on ", n_here);
  state_->ranks.resize(static_cast<size_t>(n_here));
  for (int i = 0; i < n_here; ++i) {
    Rank& r = state_->ranks[static_cast<size_t>(i)];
    r.model = i == 0 ? &model : &model.other_ranks[static_cast<size_t>(i) - 1];
    r.backend = i == 0 ? &backend : &backend.ranks()->backend(i);
  }
  on_ranks([&](Rank& r) {
    const ModelSpec& spec = r.model->spec;
    r.forward.kv = make_kv_cache(*r.backend, spec, options_.kv_dtype, n_pages_);
    r.forward.scratch = make_scratch(*r.backend, spec, options_.prefill_chunk);
    r.forward.rope_tables = make_rope_tables(*r.backend, spec, options_.max_seq_len);
    const int64_t n_logit_rows = logit_rows(options_, *r.backend);
    if (n_logit_rows > 1) r.logits_buffer(n_logit_rows);
    r.backend->reserve_for_ranks(options_.prefill_chunk, spec.dim,
                                 n_logit_rows * spec.n_output_rows());
  });
}

Executor::~Executor() = default;

int64_t Executor::kv_bytes() const {
  int64_t n_bytes = 0;
  for (const Rank& rank : state_->ranks) n_bytes += rank.forward.kv.n_bytes();
  return n_bytes;
}

int64_t Executor::kv_bytes_of(int64_t layer) const {
  int64_t n_bytes = 0;
  for (const Rank& rank : state_->ranks) n_bytes += rank.forward.kv.n_bytes_of(layer);
  return n_bytes;
}

Sequence Executor::make_sequence() {
  return Sequence(pool_, widest_window(model_.spec, options_.max_seq_len));
}

void Executor::require_fitting(const Sequence& sequence, std::span<const TokenId> tokens) const {
  MINFER_REQUIRE(Usage, !tokens.empty(), "no tokens to evaluate");
  MINFER_REQUIRE(Usage, std::ssize(tokens) <= options_.max_seq_len - sequence.pos(), tokens.size(),
                 " tokens after ", sequence.pos(), " do not fit the context of ",
                 options_.max_seq_len);
  for (const TokenId id : tokens) {
    MINFER_REQUIRE(Usage, id >= 0 && id < model_.spec.vocab_size, "token id ", id,
                   " is not below the vocabulary size ", model_.spec.vocab_size);
  }
}

Tensor Executor::evaluate(std::span<const SequenceTokens> parts) {
  MINFER_CHECK(!parts.empty(), "no sequences to evaluate");
  std::vector<TokenId> tokens;
  int64_t n_logits = 0;
  for (const SequenceTokens& part : parts) {
    require_fitting(*part.sequence, part.tokens);
    MINFER_CHECK(part.n_logits >= 0 && part.n_logits <= std::ssize(part.tokens), "logits of ",
                 part.n_logits, " of ", part.tokens.size(), " tokens");
    tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
    n_logits += part.n_logits;
  }
  MINFER_REQUIRE(Usage, std::ssize(tokens) <= options_.prefill_chunk, "logits of ", tokens.size(),
                 " tokens at once, the prefill chunk is ", options_.prefill_chunk);
  if (parts.size() == 1) return logits_of_last(*parts[0].sequence, tokens, n_logits);

  std::vector<SequenceRows> batch;
  for (const SequenceTokens& part : parts) {
    part.sequence->reserve(std::ssize(part.tokens));
    batch.push_back(part.sequence->rows_of_next(std::ssize(part.tokens)));
  }
  const std::vector<RowRange> wanted = rows_with_logits(parts);
  Tensor logits;
  on_ranks([&](Rank& r) {
    const Tensor x = forward(*r.backend, *r.model, r.forward, tokens, batch);
    if (n_logits == 0) return;
    const Tensor out = r.logits_buffer(n_logits);
    int64_t done = 0;
    for (const RowRange& rows : wanted) {
      output_logits(*r.backend, *r.model, r.forward, x.rows(rows.begin, rows.n),
                    out.rows(done, rows.n));
      done += rows.n;
    }
    if (r.model == &model_) logits = out;
  });
  const int64_t index = logits ? backend_.first_non_finite(logits) : -1;
  check_ranks();
  if (index >= 0) {
    int64_t row = index / model_.spec.vocab_size;  // of the part in which it lies
    auto part = parts.begin();
    for (; row >= part->n_logits; ++part) row -= part->n_logits;
    throw_non_finite(*part->sequence, part->tokens,
                     std::ssize(part->tokens) - part->n_logits + row);
  }
  for (const SequenceTokens& part : parts) part.sequence->advance(std::ssize(part.tokens));
  return logits;
}

Tensor Executor::logits_of_last(Sequence& sequence, std::span<const TokenId> tokens,
                                int64_t n_logits) {
  if (n_logits == 0) {
    fill_cache(sequence, tokens);
    return {};
  }
  const int64_t n_tokens = std::ssize(tokens);
  sequence.reserve(n_tokens);
  Tensor logits;
  on_ranks([&](Rank& r) {
    const Tensor x = forward_last(*r.backend, *r.model, r.forward, tokens,
                                  sequence.rows_of_next(n_tokens), n_logits);
    const Tensor out = r.logits_buffer(n_logits);
    output_logits(*r.backend, *r.model, r.forward, x, out);
    if (r.model == &model_) logits = out;
  });
  const int64_t index = backend_.first_non_finite(logits);
  check_ranks();
  if (index >= 0) {
    throw_non_finite(sequence, tokens, n_tokens - n_logits + index / model_.spec.vocab_size);
  }
  sequence.advance(n_tokens);
  return logits;
}

void Executor::fill_cache(Sequence& sequence, std::span<const TokenId> tokens) {
  // No logits here to look at: what went wrong must not hide in the cache. Keys and values of the
  // last block are left to the logits of later tokens.
  const int64_t n_tokens = std::ssize(tokens);
  sequence.reserve(n_tokens);
  Tensor x;
  on_ranks([&](Rank& r) {
    const Tensor of_rank =
        forward_to_cache(*r.backend, *r.model, r.forward, tokens, sequence.rows_of_next(n_tokens));
    if (r.model == &model_) x = of_rank;
  });
  const int64_t index = backend_.first_non_finite(x);
  check_ranks();
  if (index >= 0) throw_non_finite(sequence, tokens, index / model_.spec.dim);
  sequence.advance(n_tokens);
}

void Executor::report_progress(int64_t n_tokens) {
  std::function<void()>& after_block = state_->forward().after_block;
  after_block = nullptr;
  if (!options_.progress || n_tokens <= 1) return;
  const int64_t total = ceil_div(n_tokens, options_.prefill_chunk) * model_.spec.n_layers();
  after_block = [this, total, done = int64_t{0}]() mutable {
    done = std::min(done + 1, total);
    options_.progress(done, total);
  };
}

Tensor Executor::evaluate_all(Sequence& sequence, std::span<const TokenId> tokens) {
  require_fitting(sequence, tokens);
  report_progress(std::ssize(tokens));
  const auto chunk = static_cast<size_t>(options_.prefill_chunk);
  for (; tokens.size() > chunk; tokens = tokens.subspan(chunk)) {
    backend_.throw_if_cancelled();
    fill_cache(sequence, tokens.first(chunk));
  }
  backend_.throw_if_cancelled();
  return logits_of_last(sequence, tokens, 1);
}

std::span<const float> Executor::fetch(Tensor logits) {
  const int64_t n = logits.n_elements();
  if (!state_->host.view() || state_->host.view().n_elements() < n)
    state_->host = HostTensor(DType::F32, {n});
  const Tensor values = state_->host.view().rows(0, n);
  backend_.download_into(values, logits.reshaped({n}));
  check_ranks();
  return {values.as<const float>(), static_cast<size_t>(n)};
}

void Executor::check_ranks() const { check_all_ranks(backend_); }

DecodePlan* Executor::decode_plan() {
  // Ranks that are processes have no kernel that runs on all of them: op by op.
  const bool are_here = backend_.n_ranks() == backend_.n_ranks_here();
  if (!state_->plan_asked_for && options_.fused_decode && are_here) {
    std::vector<DecodeModel> models;
    for (Rank& rank : state_->ranks) {
      models.push_back(decode_model(*rank.model, rank.forward, options_.max_seq_len));
    }
    state_->plan = backend_.plan_decode(models);
  }
  state_->plan_asked_for = true;
  return state_->plan.get();
}

RowsPlan* Executor::rows_plan() {
  // A step of several sequences is not split over ranks yet: op by op.
  if (!state_->rows_plan_asked_for && options_.fused_decode && backend_.n_ranks() == 1) {
    state_->rows_plan =
        backend_.plan_rows(decode_model(model_, state_->forward(), options_.max_seq_len));
  }
  state_->rows_plan_asked_for = true;
  return state_->rows_plan.get();
}

RowsPlan* Executor::rows_plan_for(int64_t n_rows) {
  RowsPlan* const plan = rows_plan();
  return plan != nullptr && n_rows <= plan->max_rows() ? plan : nullptr;
}

std::vector<DecodeRow> Executor::reserve_rows(std::span<const SequenceTokens> parts) const {
  std::vector<DecodeRow> rows;
  for (const SequenceTokens& part : parts) {
    const int64_t n_tokens = std::ssize(part.tokens);
    MINFER_CHECK((parts.size() == 1 || n_tokens == 1) && part.n_logits == n_tokens, "decode of ",
                 n_tokens, " tokens, logits of ", part.n_logits);
    Sequence& sequence = *part.sequence;
    require_fitting(sequence, part.tokens);
    sequence.reserve(n_tokens);
    for (int64_t pos = sequence.pos(); const TokenId token : part.tokens) {
      rows.push_back({token, pos++, sequence.pages()});
    }
  }
  return rows;
}

std::span<const float> Executor::decode(std::span<const SequenceTokens> parts) {
  const std::vector<DecodeRow> rows = reserve_rows(parts);
  std::span<const float> logits;
  if (rows.size() == 1 && decode_plan() != nullptr) {
    logits = state_->plan->step(rows.front());
  } else if (RowsPlan* const plan = rows_plan_for(std::ssize(rows))) {
    logits = parts.size() == 1 ? plan->step_of_sequence(rows) : plan->step(rows);
  } else {
    return fetch(evaluate(parts));
  }
  if (const int64_t index = first_non_finite(logits); index >= 0) {
    throw_non_finite(parts, index / model_.spec.vocab_size);
  }
  for (const SequenceTokens& part : parts) part.sequence->advance(std::ssize(part.tokens));
  return logits;
}

std::span<const TokenId> Executor::choose(std::span<const SequenceTokens> parts,
                                          std::span<const DecodeSampling> samplings) {
  MINFER_CHECK(parts.size() == samplings.size(), parts.size(), " parts, ", samplings.size(),
               " samplings");
  const std::vector<DecodeRow> rows = reserve_rows(parts);
  std::span<const TokenId> chosen;
  if (rows.size() == 1 && decode_plan() != nullptr) {
    if (const auto run = state_->plan->start(rows.front(), 1, samplings.front())) {
      state_->chosen = run->next();
      chosen = {&state_->chosen, 1};
    }
  } else if (RowsPlan* const plan = rows_plan_for(std::ssize(rows))) {
    chosen = parts.size() == 1 ? plan->choose_of_sequence(rows, samplings.front())
                               : plan->choose(rows, samplings);
  }
  if (chosen.empty()) return {};
  if (const auto bad = std::ranges::find(chosen, -1); bad != chosen.end()) {
    throw_non_finite(parts, bad - chosen.begin());
  }
  for (const SequenceTokens& part : parts) part.sequence->advance(std::ssize(part.tokens));
  return chosen;
}

void Executor::throw_non_finite(std::span<const SequenceTokens> parts, int64_t row) {
  const bool is_of_one = parts.size() == 1;
  const SequenceTokens& part = parts[is_of_one ? 0 : size_t(row)];
  throw_non_finite(*part.sequence, part.tokens, is_of_one ? row : 0);
}

void Executor::throw_non_finite(const Sequence& sequence, std::span<const TokenId> tokens,
                                int64_t row) {
  const SequenceRows rows = sequence.rows_of_next(std::ssize(tokens));
  std::string found;  // the pass goes on to its end: other ranks may wait for this one
  on_ranks([&](Rank& r) {
    const auto look = [&](int64_t layer, Tensor x) {
      const int64_t index = found.empty() ? r.backend->first_non_finite(x) : -1;
      if (index < 0) return;
      found = cat("position ", rows.pos + index / model_.spec.dim,
                  ": not a finite number after layer ", layer);
    };
    forward(*r.backend, *r.model, r.forward, tokens, {&rows, 1},
            r.model == &model_ ? LayerObserver(look) : LayerObserver());
  });
  MINFER_REQUIRE(Numeric, found.empty(), found);
  throw Error(ErrorKind::Numeric,
              cat("position ", rows.pos + row, ": a logit is not a finite number"));
}

}  // namespace minfer
