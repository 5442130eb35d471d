#include "tools/perplexity_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numbers>

#include "tools/json_text.h"
#include "tools/statistics.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

// Figures by word and byte are those of whole pages.
bool has_pages(const PerplexityReport& report) {
  return report.plan.n_pages > 0 && std::ssize(report.plan.windows) == report.n_windows_in_all;
}

double word_perplexity(const PerplexityReport& report) {
  return std::exp(report.result.nll.sum() / double(report.plan.n_words));
}

double nats_per_byte(const PerplexityReport& report) {
  return report.result.nll.sum() / double(report.plan.n_bytes);
}

double same_top_share(const PerplexityReport& report) {
  return per_second(double(report.result.difference->n_same_top), double(report.result.nll.n()));
}

Json difference_json(const PerplexityReport& report) {
  const ModelDifference& difference = *report.result.difference;
  return {{"model", report.against},
          {"perplexity", std::exp(difference.reference_nll.mean())},
          {"mean_nll", difference.reference_nll.mean()},
          {"nll_difference", difference.nll_difference.mean()},
          {"nll_difference_stderr", difference.nll_difference.standard_error()},
          {"kl_divergence", difference.kl_divergence.mean()},
          {"kl_divergence_stderr", difference.kl_divergence.standard_error()},
          {"same_top", same_top_share(report)}};
}

Json report_json(const PerplexityReport& report) {
  const Perplexity& result = report.result;
  Json object = {{"perplexity", result.value()},
                 {"stderr", result.standard_error()},
                 {"mean_nll", result.nll.mean()},
                 {"mean_nll_stderr", result.nll.standard_error()},
                 {"tokens_total", report.plan.n_tokens},
                 {"tokens_scored", result.nll.n()},
                 {"windows", report.plan.windows.size()},
                 {"windows_in_text", report.n_windows_in_all},
                 {"ctx", report.scoring.ctx},
                 {"convention", convention_name(report.scoring.convention)},
                 {"recipe", recipe_line(report)},
                 {"text_sha256", report.text_sha256},
                 {"kv_type", report.kv_type},
                 {"activations", report.activations},
                 {"model", report.model},
                 {"seconds", report.seconds},
                 {"tokens_per_s", per_second(double(result.n_evaluated), report.seconds)}};
  if (report.scoring.convention == Convention::HfStride) object["stride"] = report.scoring.stride;
  if (has_pages(report)) {
    object["word_perplexity"] = word_perplexity(report);
    object["byte_perplexity"] = std::exp(nats_per_byte(report));
    object["bits_per_byte"] = nats_per_byte(report) / std::numbers::ln2;
    object["pages"] = report.plan.n_pages;
    object["words"] = report.plan.n_words;
  }
  if (result.difference) object["against"] = difference_json(report);
  return object;
}

}  // namespace

std::string recipe_line(const PerplexityReport& report) {
  const ScoringPlan& plan = report.plan;
  const std::string in_all = std::ssize(plan.windows) == report.n_windows_in_all
                                 ? ""
                                 : fmt::format(" of {}", report.n_windows_in_all);
  const std::string stride = report.scoring.convention == Convention::HfStride
                                 ? fmt::format("  stride {}", report.scoring.stride)
                                 : "";
  return fmt::format(
      "convention {}  text {} sha256 {}  tokens {}  windows {}{} x {}{}{}  scored {}  bos {}  kv {}"
      "  activations {}",
      convention_name(report.scoring.convention), plan.text_form, report.text_sha256.substr(0, 12),
      plan.n_tokens, plan.windows.size(), in_all, report.scoring.ctx,
      report.trained_ctx ? " (trained context)" : "", stride, report.result.nll.n(), plan.bos,
      report.kv_type, report.activations);
}

void require_finite(const PerplexityReport& report) {
  if (!has_pages(report)) return;
  MINFER_REQUIRE(Numeric, std::isfinite(word_perplexity(report)),
                 "the perplexity of a word is not finite: the NLL is ", report.result.nll.sum(),
                 " of ", report.plan.n_words, " words");
  MINFER_REQUIRE(Numeric, std::isfinite(std::exp(nats_per_byte(report))),
                 "the perplexity of a byte is not finite: the NLL is ", report.result.nll.sum(),
                 " of ", report.plan.n_bytes, " bytes");
}

namespace {

std::string one_text(const PerplexityReport& report) {
  const Perplexity& result = report.result;
  std::string text =
      fmt::format("perplexity {:.4f} +- {:.4f}\n", result.value(), result.standard_error());
  if (has_pages(report)) {
    text += fmt::format(
        "word perplexity {:.4f}, byte perplexity {:.4f}, {:.4f} bits per byte ({} pages, {} "
        "words)\n",
        word_perplexity(report), std::exp(nats_per_byte(report)),
        nats_per_byte(report) / std::numbers::ln2, report.plan.n_pages, report.plan.n_words);
  }
  if (result.difference) {
    const ModelDifference& difference = *result.difference;
    text += fmt::format(
        "against {}: perplexity {:.4f}, NLL difference {:+.6f} +- {:.6f}, "
        "KL divergence {:.6f} +- {:.6f}, same top token {:.2f} %\n",
        report.against, std::exp(difference.reference_nll.mean()), difference.nll_difference.mean(),
        difference.nll_difference.standard_error(), difference.kl_divergence.mean(),
        difference.kl_divergence.standard_error(), 100 * same_top_share(report));
  }
  return text + recipe_line(report) + "\n";
}

std::string table_row(const PerplexityReport& report) {
  const Perplexity& result = report.result;
  std::string row = fmt::format("| {} | {:.4f} | {:.4f} |", shortened(report.model, 200),
                                result.value(), result.standard_error());
  if (has_pages(report)) {
    row += fmt::format(" {:.4f} | {:.4f} |", word_perplexity(report),
                       nats_per_byte(report) / std::numbers::ln2);
  }
  if (result.difference) {
    const ModelDifference& difference = *result.difference;
    row += fmt::format(" {:+.6f} ± {:.6f} | {:.6f} ± {:.6f} | {:.2f} % |",
                       difference.nll_difference.mean(), difference.nll_difference.standard_error(),
                       difference.kl_divergence.mean(), difference.kl_divergence.standard_error(),
                       100 * same_top_share(report));
  }
  return row + '\n';
}

std::string table_text(const std::vector<PerplexityReport>& reports) {
  const PerplexityReport& first = reports.front();
  std::string head = "| model | perplexity | ± |", rule = "| --- | ---: | ---: |";
  if (has_pages(first)) {
    head += " by word | bits per byte |";
    rule += " ---: | ---: |";
  }
  if (first.result.difference) {
    head += " NLL difference | KL divergence | same top token |";
    rule += " ---: | ---: | ---: |";
  }
  std::string text = head + '\n' + rule + '\n';
  for (const PerplexityReport& report : reports) text += table_row(report);
  if (first.result.difference) {
    text += fmt::format("against {}: perplexity {:.4f}\n", shortened(first.against, 200),
                        std::exp(first.result.difference->reference_nll.mean()));
  }
  return text + recipe_line(first) + '\n';
}

}  // namespace

std::string perplexity_text(const std::vector<PerplexityReport>& reports) {
  return reports.size() == 1 ? one_text(reports.front()) : table_text(reports);
}

std::string perplexity_json(const std::vector<PerplexityReport>& reports) {
  if (reports.size() == 1) return pretty(report_json(reports.front()));
  Json results = Json::array();
  for (const PerplexityReport& report : reports) results.push_back(report_json(report));
  return pretty(Json::object({{"results", std::move(results)}}));
}

}  // namespace minfer
