#include "tools/option_hints.h"

#include <algorithm>
#include <array>
#include <utility>

namespace minfer {
namespace {

// Letters to insert, remove, replace or swap with their neighbour.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, above, row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

constexpr const char* kOneDevice =
    "a model runs wholly on one device, --device cuda (where there is a card) or --device cpu";
constexpr const char* kFlash = "attention never writes its scores to memory; there is no other";
constexpr const char* kLocal =
    "MODEL is a local path; `hf download REPOSITORY --local-dir DIRECTORY` fetches one";
constexpr const char* kReads = "weights are read into memory, never mapped";
constexpr const char* kChat = "`minfer chat` holds a conversation";
constexpr const char* kNoAdapter = "adapters are not supported; merge one into its model first";
constexpr const char* kNoGrammar = "grammars are not supported";
constexpr const char* kSampler = "that sampler is not supported; --top-k, --top-p, --min-p are";
constexpr const char* kRope = "positions are scaled as the model's own configuration says";
constexpr const char* kDraft = "speculative decoding is not supported";

constexpr auto kForeign = std::to_array<ForeignName>({
    {"-sys", "--system", nullptr},
    {"--system-prompt", "--system", nullptr},
    {"-ctk", "--kv-type", nullptr},
    {"-ctv", "--kv-type", nullptr},
    {"--cache-type-k", "--kv-type", nullptr},
    {"--cache-type-v", "--kv-type", nullptr},
    {"-sp", "--special", nullptr},
    {"-cnv", "--chat", nullptr},
    {"--conversation", "--chat", nullptr},
    {"--reverse-prompt", "--stop", nullptr},
    {"--chat-template-file", "--chat-template", nullptr},
    {"--jinja", nullptr, "--chat always runs the model's own template"},
    {"--no-display-prompt", nullptr, "the prompt is printed with --echo alone"},
    {"--keep", nullptr, "a text that outgrows the context ends there"},
    {"--samplers", nullptr, kSampler},
    {"--top-nsigma", nullptr, kSampler},
    {"-ngl", nullptr, kOneDevice},
    {"--gpu-layers", nullptr, kOneDevice},
    {"--n-gpu-layers", nullptr, kOneDevice},
    {"-sm", nullptr, kOneDevice},
    {"--split-mode", nullptr, kOneDevice},
    {"-ts", nullptr, kOneDevice},
    {"--tensor-split", nullptr, kOneDevice},
    {"-mg", nullptr, "--device cuda:N names a card"},
    {"--main-gpu", nullptr, "--device cuda:N names a card"},
    {"-dev", nullptr, "--device cpu, cuda or cuda:N"},
    {"-nkvo", nullptr, "the KV cache lies where the model does"},
    {"--no-kv-offload", nullptr, "the KV cache lies where the model does"},
    {"-fa", nullptr, kFlash},
    {"--flash-attn", nullptr, kFlash},
    {"-ub", nullptr, "-b, --batch-size are the tokens of one pass"},
    {"--ubatch-size", nullptr, "-b, --batch-size are the tokens of one pass"},
    {"-tb", nullptr, "-t, --threads are those of prompt and decode"},
    {"--threads-batch", nullptr, "-t, --threads are those of prompt and decode"},
    {"-no-cnv", nullptr, "without --chat the prompt is continued as it is"},
    {"--no-conversation", nullptr, "without --chat the prompt is continued as it is"},
    {"-st", nullptr, kChat},
    {"-i", nullptr, kChat},
    {"-if", nullptr, kChat},
    {"--interactive", nullptr, kChat},
    {"-e", nullptr, "escapes are not processed; the shell's $'...' does it"},
    {"--escape", nullptr, "escapes are not processed; the shell's $'...' does it"},
    {"-bf", nullptr, "-f FILE reads the prompt's bytes"},
    {"-sysf", nullptr, "--system \"$(cat FILE)\""},
    {"-l", nullptr, "--logit-bias ID=B"},
    {"-hf", nullptr, kLocal},
    {"-hfr", nullptr, kLocal},
    {"-hff", nullptr, kLocal},
    {"--hf-repo", nullptr, kLocal},
    {"--hf-file", nullptr, kLocal},
    {"-mu", nullptr, kLocal},
    {"--model-url", nullptr, kLocal},
    {"-mmp", nullptr, kReads},
    {"--mlock", nullptr, kReads},
    {"--mmap", nullptr, kReads},
    {"--no-mmap", nullptr, kReads},
    {"-ot", nullptr, kOneDevice},
    {"--override-tensor", nullptr, kOneDevice},
    {"-np", nullptr, "one sequence is generated at a time"},
    {"--parallel", nullptr, "one sequence is generated at a time"},
    {"-pg", nullptr, "-p and -n are tests of their own"},
    {"--lora", nullptr, kNoAdapter},
    {"--grammar", nullptr, kNoGrammar},
    {"--grammar-file", nullptr, kNoGrammar},
    {"-j", nullptr, kNoGrammar},
    {"--json-schema", nullptr, kNoGrammar},
    {"--mirostat", nullptr, kSampler},
    {"--typical", nullptr, kSampler},
    {"--xtc-probability", nullptr, kSampler},
    {"--dry-multiplier", nullptr, kSampler},
    {"--rope-scaling", nullptr, kRope},
    {"--rope-freq-base", nullptr, kRope},
    {"--rope-freq-scale", nullptr, kRope},
    {"-md", nullptr, kDraft},
    {"--model-draft", nullptr, kDraft},
    {"-co", nullptr, "the output has no colours"},
    {"--color", nullptr, "the output has no colours"},
    {"-lv", nullptr, "--log-level names a level"},
});

}  // namespace

std::string nearest(std::string_view given, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, given.size() / 3) + 1;
  for (const std::string& name : names) {
    const size_t distance = edit_distance(given, name);
    // "-x" is one letter away from every short name, which says nothing.
    if (distance >= best_distance || name.size() <= 2) continue;
    best = name;
    best_distance = distance;
  }
  if (!best.empty() || given.size() < 4) return best;
  const auto longer =
      std::ranges::find_if(names, [&](const std::string& name) { return name.starts_with(given); });
  return longer == names.end() ? "" : *longer;
}

const ForeignName* foreign_name(std::string_view name) {
  const auto found = std::ranges::find_if(
      kForeign, [&](const ForeignName& foreign) { return foreign.name == name; });
  return found == kForeign.end() ? nullptr : &*found;
}

std::vector<std::string> foreign_names_of(const std::vector<std::string>& ours) {
  std::vector<std::string> names;
  for (const ForeignName& foreign : kForeign) {
    if (foreign.ours != nullptr && std::ranges::count(ours, foreign.ours) > 0) {
      names.emplace_back(foreign.name);
    }
  }
  return names;
}

std::string command_for(std::string_view name) {
  constexpr std::pair<std::string_view, const char*> kCommands[] = {
      {"run", "generate"},
      {"cli", "generate"},
      {"completion", "generate"},
      {"main", "generate"},
      {"ppl", "eval perplexity"},
      {"convert", "quantize"},
      {"detokenize", "tokenize --decode"},
      {"show", "inspect"},
      {"info", "inspect"},
      {"benchmark", "bench"},
      {"score", "eval score"}};
  const auto* found =
      std::ranges::find(kCommands, name, &std::pair<std::string_view, const char*>::first);
  return found == std::end(kCommands) ? "" : found->second;
}

}  // namespace minfer
