#pragma once

#include <string>

#include "engine/perplexity.h"

namespace minfer {

// Everything that a figure of perplexity depends on, and the figure.
struct PerplexityReport {
  ScoringOptions scoring;
  ScoringPlan plan;              // with the windows that were evaluated
  int64_t n_windows_in_all = 0;  // that the text has
  bool trained_ctx = false;      // the convention's windows are longer than the trained context
  std::string text_sha256;       // of the file
  std::string kv_type, activations;
  std::string model, against;  // paths; `against` is empty without a reference
  Perplexity result;
  double seconds = 0;  // of the evaluation, without loading
};

// One line that says how the figure was made, so that another one can be held against it.
std::string recipe_line(const PerplexityReport& report);
// The figure of one model with its recipe; of several models a table, a row a model.
std::string perplexity_text(const std::vector<PerplexityReport>& reports);
// Throws Numeric where a figure of words or bytes is not finite.
void require_finite(const PerplexityReport& report);
// One object; of several reports under "results".
std::string perplexity_json(const std::vector<PerplexityReport>& reports);

}  // namespace minfer
