#include "tools/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/bytes_text.h"
#include "tools/json_text.h"
#include "tools/statistics.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

Json row_json(const BenchRow& row) {
  const std::vector<double> rates = row.samples_ts();
  return {
      {"test", row.test()},
      {"model", row.model},
      {"model_size", row.model_bytes},
      {"model_n_params", row.n_params},
      {"backend", row.backend},
      {"n_threads", row.n_threads},
      {"n_batch", row.n_batch},
      {"type_k", row.kv_type},
      {"type_v", row.kv_type},
      {"activations", row.activations},
      {"gemm", row.gemm},
      {"n_prompt", row.n_prompt},
      {"n_gen", row.n_gen},
      {"n_depth", row.n_depth},
      {"n_parallel", row.n_parallel},
      {"n_draft", row.n_draft},
      {"accepted_share", row.n_draft > 0 ? Json(row.accepted_share) : Json(nullptr)},
      {"pass_s", row.n_draft > 0 ? Json(mean(row.pass_s)) : Json(nullptr)},
      {"test_time", row.test_time},
      {"avg_ts", mean(rates)},
      {"stddev_ts", standard_deviation(rates)},
      {"avg_ns", mean(row.samples_s) * 1e9},
      {"stddev_ns", standard_deviation(row.samples_s) * 1e9},
      {"bytes_per_token", row.bytes_per_token},
      {"read_share", row.read_share()},
      {"flops_per_token", row.flops_per_token},
      {"arithmetic_share", row.flops_per_second > 0 ? Json(row.arithmetic_share()) : Json(nullptr)},
      {"limit", row.arithmetic_binds() ? "arithmetic" : "read"},
      {"limit_share", row.limit_share()},
      {"first_token_s", row.first_token_s},
      {"p50_s", percentile(row.step_s, 0.5)},
      {"p90_s", percentile(row.step_s, 0.9)},
      {"p99_s", percentile(row.step_s, 0.99)},
      {"samples_ts", rates}};
}

std::string markdown(const std::vector<BenchRow>& rows) {
  std::string text =
      "| model | size | params | backend | test | t/s | ms/token p50 / p99 | of the limit |\n"
      "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |\n";
  for (const BenchRow& row : rows) {
    const std::vector<double> rates = row.samples_ts();
    text += fmt::format(
        "| {} | {} | {:.2f} M | {} | {} | {:.2f} ± {:.2f} | {:.2f} / {:.2f} | "
        "{:.0f} % of {} |\n",
        row.model, bytes_text(row.model_bytes), double(row.n_params) / 1e6, row.backend, row.test(),
        mean(rates), standard_deviation(rates), percentile(row.step_s, 0.5) * 1e3,
        percentile(row.step_s, 0.99) * 1e3, row.limit_share() * 100,
        row.arithmetic_binds() ? "arithmetic" : "read bandwidth");
  }
  return text;
}

std::string with_doubled(const std::string& text, char quote) {
  std::string out(1, quote);
  for (char c : text) out += c == quote ? std::string(2, c) : std::string(1, c);
  return out + quote;
}

// A cell of CSV: the text, quoted; an array as its JSON.
std::string csv_cell(const Json& value) {
  return with_doubled(value.is_string() ? value.get<std::string>() : value.dump(), '"');
}

std::string csv(const std::vector<BenchRow>& rows) {
  std::string text;
  for (const BenchRow& row : rows) {
    const Json object = row_json(row);
    std::string names, values;
    for (const auto& [name, value] : object.items()) {
      names += (names.empty() ? "" : ",") + name;
      values += (values.empty() ? "" : ",") + csv_cell(value);
    }
    if (text.empty()) text = names + '\n';
    text += values + '\n';
  }
  return text;
}

Json rows_json(const std::vector<BenchRow>& rows) {
  Json array = Json::array();
  for (const BenchRow& row : rows) array.push_back(row_json(row));
  return array;
}

// The type of a column, of the first row that has a value there. What may be missing from all rows
// is measured.
const char* sql_type(const Json& rows, const std::string& name) {
  for (const Json& row : rows) {
    const Json& value = row.at(name);
    if (value.is_null()) continue;
    return value.is_number_integer() ? "INTEGER" : value.is_number() ? "REAL" : "TEXT";
  }
  return "REAL";
}

std::string sql(const std::vector<BenchRow>& rows) {
  std::string text;
  const Json objects = rows_json(rows);
  for (const Json& object : objects) {
    std::string columns, names, values;
    for (const auto& [name, value] : object.items()) {
      const std::string comma = names.empty() ? "" : ", ";
      const std::string quoted = with_doubled(name, '"');  // some are words of SQL: limit
      if (text.empty()) columns += comma + quoted + " " + sql_type(objects, name);
      names += comma + quoted;
      const std::string plain = value.is_string() ? value.get<std::string>() : value.dump();
      const bool is_bare = value.is_number() || value.is_null();
      values += comma + (is_bare ? plain : with_doubled(plain, '\''));
    }
    if (text.empty()) text = "CREATE TABLE IF NOT EXISTS test (" + columns + ");\n";
    text += "INSERT INTO test (" + names + ") VALUES (" + values + ");\n";
  }
  return text;
}

std::string json_lines(const std::vector<BenchRow>& rows) {
  std::string text;
  for (const BenchRow& row : rows) text += compact(row_json(row)) + '\n';
  return text;
}

}  // namespace

std::string BenchRow::test() const {
  std::string name = n_prompt > 0 ? fmt::format("pp{}", n_prompt) : fmt::format("tg{}", n_gen);
  if (n_parallel > 1) name += fmt::format(" x {}", n_parallel);
  if (n_draft > 0) {
    name += fmt::format(" + {} drafted ({:.0f} % taken)", n_draft, accepted_share * 100);
  }
  if (n_depth > 0) name += fmt::format(" @ d{}", n_depth);
  return name;
}

std::vector<double> BenchRow::samples_ts() const {
  std::vector<double> rates;
  for (double seconds : samples_s) rates.push_back(per_second(double(n_tokens()), seconds));
  return rates;
}

double BenchRow::read_share() const {
  return per_second(double(bytes_per_token) * mean(samples_ts()), read_bytes_per_second);
}

double BenchRow::arithmetic_share() const {
  return per_second(flops_per_token * mean(samples_ts()), flops_per_second);
}

double mean_positions_seen(int64_t n, int64_t n_depth, int64_t most) {
  const int64_t n_below = most == 0 ? n : std::clamp<int64_t>(most - n_depth, 0, n);
  const double below = double(n_below) * (double(n_depth) + double(n_below + 1) / 2);
  return (below + double(n - n_below) * double(most)) / double(n);
}

double flops_per_token(const ModelSpec& spec, int64_t n, int64_t n_depth, bool with_logits) {
  double multiplies = 0;
  for_each_weight(spec, [&](const WeightInfo& weight) {
    if (!weight.is_in_block() || !weight.is_matrix()) return;
    // A token goes through some of the experts, which all have one size.
    const int64_t n_active = spec.layer(weight.layer).n_active_experts;
    if (weight.is_of_expert() && weight.expert >= n_active) return;
    multiplies += double(weight.shape.n_elements());
  });
  double attention = 0;
  for (const LayerSpec& layer : spec.layers) {
    attention += 2 * double(layer.q_dim()) * mean_positions_seen(n, n_depth, layer.window);
  }
  const double logits =
      double(spec.dim) * double(spec.n_output_rows()) * (with_logits ? 1 : 1 / double(n));
  return 2 * (multiplies + attention + logits);
}

std::string format_rows(const std::vector<BenchRow>& rows, const std::string& format) {
  if (format == "md") return markdown(rows);
  if (format == "csv") return csv(rows);
  if (format == "sql") return sql(rows);
  if (format == "jsonl") return json_lines(rows);
  MINFER_CHECK(format == "json", "bench format ", format);
  return pretty(rows_json(rows)) + '\n';
}

std::string bench_json(const MachineLimits& limits, const std::vector<BenchRow>& rows) {
  return pretty(Json::object({{"machine", machine_json()},
                              {"limits", limits_object(limits)},
                              {"results", rows_json(rows)}}));
}

}  // namespace minfer
