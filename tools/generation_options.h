#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "tools/command_line.h"
#include "tools/device.h"

namespace minfer {

// The values that the sampling options take, on the command line and in a line of --prompts.
constexpr NumberRange kTemperatureRange{0, 100}, kTopPRange{0, 1}, kMinPRange{0, 1},
    kRepeatPenaltyRange{0.01f, 100}, kPenaltyRange{-100, 100};
constexpr int64_t kMostLogprobs = 1000;

inline constexpr int64_t kDefaultPredict = 128;

// What `generate` and `chat` have in common: the model, how it runs, and how tokens are chosen.
struct GenerationOptions {
  std::string model_path, tokenizer_path;
  int64_t ctx_size = 0;    // 0: the command's own
  int64_t batch_size = 0;  // 0: the backend's own
  std::string kv_type = "f16";
  std::string draft = "none";
  int64_t seed = -1;                    // -1: a random one
  std::vector<std::string> logit_bias;  // "ID=B"
  bool jsonl = false;
  std::optional<int64_t> n_predict;  // the command's own where it is not given
  GenerateOptions generate;          // but its n_predict and logit_bias
  DeviceOptions device;
};

void add_model_options(CommandNode& command, GenerationOptions& options);
// -n, whose default is told as `default_predict`, --stop, --ignore-eos, --logprobs, --jsonl.
void add_output_options(CommandNode& command, GenerationOptions& options,
                        const std::string& default_predict);
void add_sampling_options(CommandNode& command, GenerationOptions& options);
void add_context_options(CommandNode& command, GenerationOptions& options,
                         const std::string& default_context);

// Throws Usage for what cannot be, before a model is read.
void check_generation_options(const GenerationOptions& options, bool json);
// Sets what --draft asks for. Throws Usage with --tp mpi.
void use_drafts(const GenerationOptions& options, const Backend& backend, GenerateOptions& generate,
                SessionOptions& session);
// With -n, --logit-bias and the end by Ctrl-C; throws Usage where a text is no ID=B.
GenerateOptions parsed_generate_options(const GenerationOptions& options, int64_t default_predict);
// `seed`, or a random one for -1.
uint64_t seed_of(int64_t seed);
// None where nothing is drawn: at temperature 0.
std::optional<uint64_t> chosen_seed(const GenerationOptions& options);

}  // namespace minfer
