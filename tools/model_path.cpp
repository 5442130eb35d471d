#include "tools/model_path.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "kernels/base/error.h"
#include "loaders/file.h"
#include "tools/log.h"
#include "tools/model_directory.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

// What scripts/get_model.sh fetches, by its name there; the first is the one that runs by default.
struct FetchedModel {
  std::string_view name, file;
};
constexpr FetchedModel kFetched[] = {{"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"},
                                     {"gemma3-270m", "gemma-3-270m-q4_k_m.gguf"}};
constexpr const char* kDemoName = "demo";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// What lies beside this program: installed, or in the tree that it was built in. Empty where
// neither place has `file`.
std::string beside_program(const char* installed, const char* in_tree, const std::string& file) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return "";
  for (const char* place : {installed, in_tree}) {
    const fs::path dir = (program.parent_path() / place).lexically_normal();
    if (path_exists(dir / file)) return dir;
  }
  return "";
}

// Empty where there is none.
std::string demo_model() {
  return beside_program("../share/minfer/demo", "../../../models/demo", "config.json");
}

}  // namespace

std::string script_path(const std::string& name) {
  const std::string dir = beside_program("../share/minfer/scripts", "../../../scripts", name);
  return dir.empty() ? "scripts/" + name : dir + "/" + name;
}

std::string cache_dir() {
  const std::string cache = environment("XDG_CACHE_HOME");
  return (cache.empty() ? environment("HOME") + "/.cache" : cache) + "/minfer";
}

std::string model_cache_dir() { return cache_dir() + "/models"; }

std::string find_model(const std::string& given) {
  if (!given.empty() && path_exists(given)) {
    if (given == environment("MINFER_MODEL")) log_info("model " + shortened(given, 500));
    std::error_code ignored;
    return fs::is_directory(given, ignored) ? model_in_directory(given) : given;
  }
  const auto named = std::ranges::find(kFetched, given, &FetchedModel::name);
  const bool is_fetched = given.empty() || named != std::end(kFetched);
  const FetchedModel& fetched = named == std::end(kFetched) ? kFetched[0] : *named;
  std::string path;
  if (is_fetched) {
    path = cat(model_cache_dir(), "/", fetched.file);
    if (!path_exists(path)) path.clear();
  }
  if (path.empty() && (given.empty() || given == kDemoName)) path = demo_model();
  if (path.empty() && !is_fetched && given != kDemoName) {
    const std::string missing = missing_model_text(given);
    MINFER_REQUIRE(Input, missing.empty(), missing);
    return given;  // the loader says what is wrong with it
  }
  MINFER_REQUIRE(
      Usage, !path.empty(), given.empty() ? "no model given (-m, MINFER_MODEL), and " : "",
      given == kDemoName ? "the demonstration model is not installed"
                         : cat(fetched.name, " is not in ", shortened(model_cache_dir(), 200)),
      "; ", shortened(script_path("get_model.sh"), 500), " ", fetched.name, " fetches ",
      fetched.name);
  log_info("model " + path);
  return path;
}

}  // namespace minfer
