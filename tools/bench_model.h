#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "models/model.h"
#include "tools/commands.h"
#include "tools/device.h"

// The models that `minfer bench` and the commands below it time.
namespace minfer {

struct BenchOptions {
  std::vector<std::string> model_paths, synthetics;
  std::vector<int64_t> n_prompt = {512}, n_gen = {128}, n_depth = {0}, n_parallel = {1};
  std::vector<int64_t> n_draft = {0};
  int64_t accepted_percent = 0;
  int64_t repetitions = 5;
  int64_t batch_size = 0;  // 0: the backend's own
  std::string kv_type = "f16", format = "md";
  bool no_warmup = false;
  std::string filter;  // of `bench kernels`
  DeviceOptions device;
};

// What is timed: a model's path, or the name of a shape with random weights.
struct BenchSubject {
  std::string path, synthetic;
  OpenedModel opened = {};  // of a path, until its weights are loaded
};

// MINFER_MODEL stands for a model that is not named, and so not beside a shape that is.
std::vector<BenchSubject> bench_subjects(const BenchOptions& options);

// A model and the backend that it is on.
struct LoadedModel {
  std::unique_ptr<Backend> backend;
  Model model;
};

// Loads or makes the model, for a session with bench_session_options().
LoadedModel load_bench_model(const BenchOptions& options, BenchSubject& subject,
                             const Context& context);

// Of a context that has room for the largest of the tests. Throws Usage where the model was trained
// on a shorter one.
SessionOptions bench_session_options(const BenchOptions& options, const ModelSpec& spec);

// Half a second without work. A card under load has a lower clock, since its power is limited:
// behind a prompt, or 0.7 s of decode; this restores it (docs/benchmarks/README.md).
void let_card_rest();

// Token ids that change from place to place, inside any vocabulary.
std::vector<TokenId> bench_tokens(int64_t n, int64_t vocab_size);

}  // namespace minfer
