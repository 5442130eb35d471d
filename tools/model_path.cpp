#include "tools/model_path.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "kernels/base/error.h"
#include "tools/log.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

// Short names and the files that scripts/get_model.sh makes of them.
constexpr std::array<std::pair<const char*, const char*>, 1> kShortNames = {
    {{"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"}}};
constexpr const char* kDefaultName = "smollm2";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

std::string cache_dir() {
  const std::string cache = environment("XDG_CACHE_HOME");
  return (cache.empty() ? environment("HOME") + "/.cache" : cache) + "/minfer";
}

std::string model_cache_dir() { return cache_dir() + "/models"; }

std::string find_model(const std::string& given) {
  if (!given.empty() && exists(given)) return given;
  const std::string name = given.empty() ? kDefaultName : given;
  for (const auto& [short_name, file] : kShortNames) {
    if (name != short_name) continue;
    const std::string path = model_cache_dir() + "/" + file;
    MINFER_REQUIRE(Usage, exists(path),
                   given.empty() ? "no model given (-m, MINFER_MODEL), and " : "", short_name,
                   " is not in ", shortened(model_cache_dir(), 200), "; scripts/get_model.sh ",
                   short_name, " fetches it");
    log_info("model " + path);
    return path;
  }
  return given;  // the loader says what is wrong with it
}

}  // namespace minfer
