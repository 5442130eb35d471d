#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "tools/options.h"
#include "tools/output.h"

namespace minfer {

// What every command is given.
struct Context {
  CommonOptions common;
  Output out;
};

// A node of the option tree with what it does. Options live in `run`.
struct Command {
  CLI::App* app;
  std::function<void()> run;
};

Command add_generate_command(CLI::App& root, Context& context);
Command add_tokenize_command(CLI::App& root, Context& context);
Command add_inspect_command(CLI::App& root, Context& context);
Command add_bench_command(CLI::App& root, Context& context);
Command add_completions_command(CLI::App& root, Context& context);
Command add_man_command(CLI::App& root, Context& context);

}  // namespace minfer
