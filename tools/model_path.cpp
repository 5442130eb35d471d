#include "tools/model_path.h"

#include <cstdlib>
#include <filesystem>

#include "kernels/base/error.h"
#include "loaders/file.h"
#include "tools/log.h"
#include "tools/model_directory.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

// What scripts/get_model.sh fetches, and its name here.
constexpr const char* kFetchedName = "smollm2";
constexpr const char* kFetchedFile = "SmolLM2-135M-Instruct.Q4_1.gguf";
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
  std::string path;
  if (given.empty() || given == kFetchedName) {
    path = model_cache_dir() + "/" + kFetchedFile;
    if (!path_exists(path)) path.clear();
  }
  if (path.empty() && (given.empty() || given == kDemoName)) path = demo_model();
  if (path.empty() && !given.empty() && given != kFetchedName && given != kDemoName) {
    const std::string missing = missing_model_text(given);
    MINFER_REQUIRE(Input, missing.empty(), missing);
    return given;  // the loader says what is wrong with it
  }
  MINFER_REQUIRE(
      Usage, !path.empty(), given.empty() ? "no model given (-m, MINFER_MODEL), and " : "",
      given == kDemoName ? "the demonstration model is not installed"
                         : cat(kFetchedName, " is not in ", shortened(model_cache_dir(), 200)),
      "; ", shortened(script_path("get_model.sh"), 500), " ", kFetchedName, " fetches ",
      kFetchedName);
  log_info("model " + path);
  return path;
}

}  // namespace minfer
