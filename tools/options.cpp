#include "tools/options.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <thread>

#include "kernels/base/error.h"
#include "kernels/base/math.h"

namespace minfer {
namespace {

template <typename T>
T parse_whole(std::string_view what, std::string_view text, T low, T high) {
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  T value{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = error == std::errc{} && end == digits.data() + digits.size();
  constexpr const char* kKind = std::is_integral_v<T> ? "an integer" : "a number";
  MINFER_REQUIRE(Usage, whole && value >= low && value <= high, what, ": ", shortened(text),
                 " is not ", kKind,
                 high == std::numeric_limits<T>::max() ? cat(" from ", low, " up")
                                                       : cat(" in [", low, ", ", high, "]"));
  return value;
}

// CLI11 hands over the last of several values as the only one.
using Parse = std::function<void(const std::string&)>;
CLI::Option* add_parsed(CLI::App& app, const std::string& names, const std::string& type,
                        const std::string& help, Parse parse) {
  return app
      .add_option(
          names,
          [parse = std::move(parse)](const CLI::results_t& results) {
            parse(results.back());
            return true;
          },
          help)
      ->type_name(type)
      ->take_last();
}

// "-n,--predict" to "--predict"
std::string shown_name(const std::string& names) {
  const size_t dashes = names.find("--");
  if (dashes == std::string::npos) return names;
  return names.substr(dashes, names.find(',', dashes) - dashes);
}

}  // namespace

int64_t parse_integer(std::string_view what, std::string_view text, int64_t low, int64_t high) {
  return parse_whole<int64_t>(what, text, low, high);
}

double parse_number(std::string_view what, std::string_view text, double low, double high) {
  return parse_whole<double>(what, text, low, high);
}

CLI::Option* add_integer(CLI::App& app, const std::string& names, int64_t& value, int64_t low,
                         int64_t high, const std::string& help) {
  return add_parsed(app, names, "N", help,
                    [&value, low, high, name = shown_name(names)](const std::string& text) {
                      value = parse_integer(name, text, low, high);
                    })
      ->default_str(cat(value));
}

CLI::Option* add_number(CLI::App& app, const std::string& names, float& value, float low,
                        float high, const std::string& help) {
  return add_parsed(app, names, "X", help,
                    [&value, low, high, name = shown_name(names)](const std::string& text) {
                      value = parse_whole<float>(name, text, low, high);
                    })
      ->default_str(cat(value));
}

CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& value,
                      const std::string& type, const std::string& help) {
  return add_parsed(app, names, type, help, [&value](const std::string& text) { value = text; })
      ->default_str(value);
}

CLI::Option* add_text(CLI::App& app, const std::string& names, std::optional<std::string>& value,
                      const std::string& type, const std::string& help) {
  return add_parsed(app, names, type, help, [&value](const std::string& text) { value = text; });
}

CLI::Option* add_integer_list(CLI::App& app, const std::string& names, std::vector<int64_t>& value,
                              int64_t low, int64_t high, const std::string& help) {
  std::string shown;
  for (int64_t v : value) shown += cat(shown.empty() ? "" : ",", v);
  return add_parsed(app, names, "N,...", help,
                    [&value, low, high, name = shown_name(names)](const std::string& text) {
                      value.clear();
                      for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
                        end = text.find(',', begin);
                        value.push_back(parse_integer(
                            name, std::string_view(text).substr(begin, end - begin), low, high));
                      }
                    })
      ->default_str(shown);
}

CLI::Option* add_choice(CLI::App& app, const std::string& names, std::string& value,
                        const std::vector<std::string>& choices, const std::string& help) {
  std::string list;
  for (const std::string& choice : choices) list += (list.empty() ? "" : "|") + choice;
  return add_parsed(app, names, list, help,
                    [&value, choices, list, name = shown_name(names)](const std::string& text) {
                      MINFER_REQUIRE(Usage, std::ranges::count(choices, text) > 0, name, ": ",
                                     shortened(text), " is none of ", list);
                      value = text;
                    })
      ->default_str(value);
}

CLI::Option* add_repeatable(CLI::App& app, const std::string& names,
                            std::vector<std::string>& values, const std::string& type,
                            const std::string& help) {
  return app
      .add_option(
          names,
          [&values](const CLI::results_t& results) {
            values = results;
            return true;
          },
          help)
      ->type_name(type)
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false);
}

void add_device_options(CLI::App& app, DeviceOptions& options) {
  add_integer(app, "-t,--threads", options.n_threads, 0, 1024,
              "Threads; 0: one for each core that the process may use");
  add_text(app, "--device", options.device, "DEVICE", "cpu, cuda, cuda:0 or cuda:0,1")
      ->group(kMoreOptions);
  add_integer(app, "--tp", options.tp, 1, 64, "Ranks that share the model")->group(kMoreOptions);
  add_choice(app, "--activations", options.activations, {"float", "int8", "int8-asym"},
             "Type of the inputs of each matmul")
      ->group(kMoreOptions);
}

int thread_count(const DeviceOptions& options) {
  if (options.n_threads > 0) return narrow<int>(options.n_threads);
  return std::max(1, narrow<int>(std::thread::hardware_concurrency()));
}

std::unique_ptr<Backend> make_backend(const DeviceOptions& options) {
  const bool cuda = options.device == "cuda" || options.device.starts_with("cuda:");
  MINFER_REQUIRE(Gpu, !cuda, "--device ", shortened(options.device),
                 ": this build has no CUDA backend; --device cpu runs here");
  MINFER_REQUIRE(Usage, options.device == "cpu", "--device: ", shortened(options.device),
                 " is none of cpu, cuda, cuda:N,...");
  MINFER_REQUIRE(Usage, options.tp == 1, "--tp ", options.tp,
                 ": this build runs on one rank; --tp 1 runs here");
  MINFER_REQUIRE(Usage, options.activations == "float", "--activations ", options.activations,
                 ": this build knows float alone");
  return make_cpu_backend({.n_threads = thread_count(options), .isa = {}});
}

void name_environment_variables(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || !option->get_configurable()) continue;
    std::string name = "MINFER_" + option->get_lnames().front();
    for (char& c : name) c = c == '-' ? '_' : (c >= 'a' && c <= 'z') ? char(c - 'a' + 'A') : c;
    option->envname(name);
  }
  for (CLI::App* command : app.get_subcommands({})) name_environment_variables(*command);
}

}  // namespace minfer
