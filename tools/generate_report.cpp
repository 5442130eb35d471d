#include "tools/generate_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "kernels/base/bytes_text.h"
#include "tools/json_text.h"
#include "tools/mpi_ranks.h"
#include "tools/statistics.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

double decode_bandwidth_gb(const GenerateResult& result, const Model& model) {
  const double bytes = double(model.bytes_per_token) * double(result.decode_steps);
  return per_second(bytes, result.decode_seconds) / 1e9;
}

Json top_json(const GeneratedToken& token, const Model& model) {
  Json top = Json::array();
  for (const TokenLogprob& candidate : token.top) {
    top.push_back({{"id", candidate.id},
                   {"piece", model.tokenizer->piece(candidate.id)},
                   {"logprob", candidate.logprob}});
  }
  return top;
}

Json timings_json(const GenerateResult& result, const StartTimes& start, const Model& model) {
  return {
      {"start_s", start.seconds},
      {"load_s", model.load_seconds},
      {"prefill_s", result.prefill_seconds},
      {"prefill_tokens_per_s", per_second(double(result.prompt_tokens), result.prefill_seconds)},
      {"first_token_s", result.first_token_seconds},
      {"start_to_first_token_s", start.loaded_seconds + result.first_token_seconds},
      {"decode_s", result.decode_seconds},
      {"decode_tokens_per_s", per_second(double(result.decoded_tokens()), result.decode_seconds)},
      {"weight_gb_per_s", decode_bandwidth_gb(result, model)}};
}

// All but the text and its tokens.
Json figures_json(const ResultReport& report) {
  const GenerateResult& result = report.result;
  Json object = {{"prompt_tokens", result.prompt_tokens},
                 {"generated_tokens", result.tokens.size()},
                 {"drafted_tokens", result.drafted_tokens},
                 {"accepted_tokens", result.accepted_tokens},
                 {"stop_reason", stop_reason_name(result.stop_reason)},
                 {"seed", report.seed ? Json(*report.seed) : Json(nullptr)},
                 {"logprobs", nullptr},
                 {"timings", timings_json(result, report.start, report.model)},
                 {"model", report.model.description},
                 {"activations", report.activations}};
  if (report.with_logprobs) {
    Json& logprobs = object["logprobs"] = Json::array();
    for (const GeneratedToken& step : result.steps) {
      logprobs.push_back({{"id", step.id},
                          {"piece", report.model.tokenizer->piece(step.id)},
                          {"logprob", step.logprob},
                          {"top", top_json(step, report.model)}});
    }
  }
  if (report.echo) object["prompt"] = *report.echo;
  return object;
}

}  // namespace

std::string load_line(const Executor& executor, const SessionOptions& options) {
  const Model& model = executor.model();
  const std::string sequences =
      options.n_sequences > 1 ? cat(options.n_sequences, " x ") : std::string();
  return fmt::format(
      "model {}, {} ({:.2f} bpw), {} layers | kv {}{} x {} = {} | {} | "
      "loaded in {:.2f} s, {:.2f} GB/s",
      model.description, bytes_text(model.file_bytes),
      8.0 * double(model.file_bytes) / double(model.n_params), model.spec.n_layers(), sequences,
      executor.max_seq_len(),
      options.kv_dtype == DType::U8    ? "int8"
      : options.kv_dtype == DType::F16 ? "f16"
                                       : "f32",
      bytes_text(sum_of_processes(executor.kv_bytes())), executor.backend().name_of_ranks(),
      model.load_seconds, per_second(double(model.file_bytes), model.load_seconds) / 1e9);
}

std::string finish_line(const GenerateResult& result, std::vector<double> token_seconds,
                        const Model& model, std::optional<uint64_t> seed) {
  if (result.stop_reason == StopReason::Interrupted && result.tokens.empty()) {
    return fmt::format("interrupted while reading the prompt of {} tok", result.prompt_tokens);
  }
  const int64_t n_evaluated = result.evaluated_tokens();
  std::string line = fmt::format("prompt {} tok, {:.0f} ms, {:.1f} tok/s", n_evaluated,
                                 result.prefill_seconds * 1e3,
                                 per_second(double(n_evaluated), result.prefill_seconds));
  if (!result.tokens.empty()) {
    line += fmt::format(" | first token {:.0f} ms", result.first_token_seconds * 1e3);
  }
  if (result.decode_steps > 0) {
    const double rate = per_second(double(result.decoded_tokens()), result.decode_seconds);
    line += fmt::format(" | {} tok, {:.1f} tok/s, {:.1f} ms/tok (p99 {:.1f}) | {:.1f} GB/s",
                        result.tokens.size(), rate, per_second(1e3, rate),
                        percentile(std::move(token_seconds), 0.99) * 1e3,
                        decode_bandwidth_gb(result, model));
  }
  if (result.drafted_tokens > 0) {
    line +=
        fmt::format(" | {} of {} drafted tok right", result.accepted_tokens, result.drafted_tokens);
  }
  line += fmt::format(" | stop {}", stop_reason_name(result.stop_reason));
  return seed ? line + fmt::format(" | seed {}", *seed) : line;
}

std::string texts_line(size_t n_texts, int64_t n_tokens, double seconds) {
  return fmt::format("{} texts, {} tok in {:.1f} s, {:.1f} tok/s", n_texts, n_tokens, seconds,
                     per_second(double(n_tokens), seconds));
}

std::string token_json(const GeneratedToken& token, int64_t index, const Model& model,
                       bool with_logprobs) {
  Json object = {{"index", index}, {"id", token.id}, {"text", token.text}};
  if (with_logprobs && token.id >= 0) {
    object["logprob"] = token.logprob;
    object["top"] = top_json(token, model);
  }
  return compact(object);
}

std::string result_json(const ResultReport& report) {
  Json object = {{"text", report.result.text}, {"tokens", report.result.tokens}};
  object.update(figures_json(report));
  return pretty(object);
}

std::string error_json(const std::string& id, const std::string& error) {
  return compact({{"id", Json::parse(id)}, {"error", error}});
}

std::string line_json(const ResultReport& report, const std::string& id) {
  Json object = {
      {"id", Json::parse(id)}, {"text", report.result.text}, {"tokens", report.result.tokens}};
  object.update(figures_json(report));
  return compact(object);
}

std::string done_json(const ResultReport& report) {
  Json object = {{"done", true}};
  object.update(figures_json(report));
  return compact(object);
}

}  // namespace minfer
