#pragma once

#include <string>
#include <vector>

#include "models/weight_list.h"
#include "tools/machine_report.h"

namespace minfer {

// One test of `minfer bench`: n_prompt tokens of prefill or n_gen of decode, behind n_depth tokens
// of context, of each of n_parallel sequences side by side; or n_gen tokens of one sequence by
// passes of a token and n_draft more, of which accepted_share are taken.
struct BenchRow {
  std::string model;  // "llama 1.1B F16"
  int64_t model_bytes = 0, n_params = 0;
  std::string backend;  // "cpu avx512, 2 threads"
  std::string kv_type, activations = "float", gemm = "own";
  std::string test_time;  // ISO 8601, UTC, of the first repetition
  int64_t n_threads = 0, n_batch = 0;
  int64_t n_prompt = 0, n_gen = 0, n_depth = 0, n_parallel = 1, n_draft = 0;
  double accepted_share = 0;

  std::vector<double> samples_s;     // seconds of each repetition
  std::vector<double> step_s;        // seconds per token of a sequence, of every timed call
  std::vector<double> pass_s;        // seconds of every timed pass with a draft
  double first_token_s = 0;          // mean time until the logits of the first new token
  int64_t bytes_per_token = 0;       // weights and cache that one token reads
  double read_bytes_per_second = 0;  // of the machine, measured in the same run
  double flops_per_token = 0;
  double flops_per_second = 0;  // of the machine; 0: not known

  int64_t n_tokens() const { return (n_prompt + n_gen) * n_parallel; }
  // Mean tokens of a pass of decode with a draft.
  double tokens_per_pass() const { return 1 + accepted_share * double(n_draft); }
  // "pp512", "tg128 @ d4096", "tg128 x 8", "tg128 + 7 drafted (50 % taken)"
  std::string test() const;
  std::vector<double> samples_ts() const;
  double read_share() const;
  double arithmetic_share() const;
  // Of the two limits the one that is nearer: reads of memory for decode, arithmetic for most
  // prefills.
  bool arithmetic_binds() const { return n_prompt > 0 && arithmetic_share() > read_share(); }
  double limit_share() const { return arithmetic_binds() ? arithmetic_share() : read_share(); }
};

// Positions that a token of n behind n_depth attends to, on average: those up to its own, and of
// them at most `most`, or all if that is 0.
double mean_positions_seen(int64_t n, int64_t n_depth, int64_t most);

// Floating-point operations of the linear layers and of attention for one of n tokens behind
// n_depth.
double flops_per_token(const ModelSpec& spec, int64_t n, int64_t n_depth, bool with_logits);

// "md", "csv", "json" (the array of rows), "jsonl", "sql".
std::string format_rows(const std::vector<BenchRow>& rows, const std::string& format);
// {"machine", "limits", "results"}: the host by name, what it can do, and the rows.
std::string bench_json(const MachineLimits& limits, const std::vector<BenchRow>& rows);

}  // namespace minfer
