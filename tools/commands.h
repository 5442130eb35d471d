#pragma once

#include <memory>

#include "tools/command_line.h"
#include "tools/log.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace minfer {

struct BenchOptions;   // tools/bench_model.h
struct DeviceOptions;  // tools/device.h

// What every command is given.
struct Context {
  double started = now_seconds();
  std::string settings;  // the command and all options that were given: CommandLine::settings()
  CommonOptions common;
  Output out;
};

void add_generate_command(CommandNode& root, Context& context);
void add_chat_command(CommandNode& root, Context& context);
void add_tokenize_command(CommandNode& root, Context& context);
void add_inspect_command(CommandNode& root, Context& context);
void add_eval_command(CommandNode& root, Context& context);
void add_eval_perplexity_command(CommandNode& eval, Context& context);
void add_eval_score_command(CommandNode& eval, Context& context);
void add_quantize_command(CommandNode& root, Context& context);
void add_bench_command(CommandNode& root, Context& context);
// With the options --device, --tp and -r of `bench`.
void add_bench_all_reduce_command(CommandNode& bench, std::shared_ptr<const DeviceOptions> device,
                                  std::shared_ptr<const int64_t> repetitions, Context& context);
// With the options of `bench`.
void add_bench_step_command(CommandNode& bench, std::shared_ptr<const BenchOptions> options,
                            Context& context);
void add_completions_command(CommandNode& root, Context& context);
void add_man_command(CommandNode& root, Context& context);

}  // namespace minfer
