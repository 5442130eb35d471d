#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"

namespace minfer {

// Options whose values are parsed whole and without a locale, and refused (Usage) with their range.
// The first of the long `names` is shown in the help, others are quiet aliases.
CLI::Option* add_integer(CLI::App& app, const std::string& names, int64_t& value, int64_t low,
                         int64_t high, const std::string& help);
CLI::Option* add_number(CLI::App& app, const std::string& names, float& value, float low,
                        float high, const std::string& help);
CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& value,
                      const std::string& type, const std::string& help);
CLI::Option* add_text(CLI::App& app, const std::string& names, std::optional<std::string>& value,
                      const std::string& type, const std::string& help);
// One or more integers with commas between them, as in "512,2048".
CLI::Option* add_integer_list(CLI::App& app, const std::string& names, std::vector<int64_t>& value,
                              int64_t low, int64_t high, const std::string& help);
CLI::Option* add_choice(CLI::App& app, const std::string& names, std::string& value,
                        const std::vector<std::string>& choices, const std::string& help);
// Given any number of times, one value each.
CLI::Option* add_repeatable(CLI::App& app, const std::string& names,
                            std::vector<std::string>& values, const std::string& type,
                            const std::string& help);

// The whole of `text` as a number in [low, high]; Usage naming `what` otherwise.
int64_t parse_integer(std::string_view what, std::string_view text, int64_t low, int64_t high);
double parse_number(std::string_view what, std::string_view text, double low, double high);

// Group of options that --help-all alone shows.
inline constexpr const char* kMoreOptions = "More options";

// Taken by every command, before or after its name.
struct CommonOptions {
  bool json = false;
  bool quiet = false;
  int64_t verbosity = 0;
  std::string log_level;
  std::string log_file;
};
void add_common_options(CLI::App& root, CommonOptions& options);
// Logs go to stderr (and the file); from here on spdlog's functions say how much.
void configure_log(const CommonOptions& options);

// Where the mathematics runs.
struct DeviceOptions {
  int64_t n_threads = 0;
  std::string device = "cpu";
  int64_t tp = 1;
  std::string activations = "float";
};
void add_device_options(CLI::App& app, DeviceOptions& options);
int thread_count(const DeviceOptions& options);  // with 0 resolved
std::unique_ptr<Backend> make_backend(const DeviceOptions& options);

// Every option of the tree can be set by MINFER_<OPTION>.
void name_environment_variables(CLI::App& app);

}  // namespace minfer
