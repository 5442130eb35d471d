#include <cstring>
#include <memory>

#include "tests/fuzz/parser_targets.h"
#include "tests/support/load_everything.h"
#include "tests/support/model_files.h"
#include "tests/support/sample_models.h"

namespace minfer::test {
namespace {

// Of a safetensors file the header as JSON, now and then its length too.
std::string mutated_safetensors(const std::string& file, Random& random) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  const std::string header = mutated_json(file.substr(8, header_bytes), random);
  std::string changed = safetensors_file(header, file.substr(8 + header_bytes));
  return one_in(random, 8) ? mutated(std::move(changed), random) : changed;
}

// Its own directory, made when it is first run.
struct OnDisk {
  explicit OnDisk(SampleModel model) : sample(std::move(model)) {}
  void load(const std::string& bytes) {
    if (dir == nullptr) dir = std::make_unique<SampleDir>(sample);
    dir->write(bytes);
    load_everything(dir->model());
  }
  SampleModel sample;
  std::unique_ptr<SampleDir> dir;
};

}  // namespace

void add_loader_targets(std::vector<FuzzTarget>& targets) {
  for (const SampleModel& sample : sample_models()) {
    const auto on_disk = std::make_shared<OnDisk>(sample);
    const bool is_json = sample.file.ends_with(".json");
    const bool is_safetensors = sample.file.ends_with(".safetensors");
    size_t other_bytes = 0;
    for (const auto& [name, bytes] : sample.others) other_bytes += bytes.size();
    targets.push_back({sample.name,
                       [sound = sample.bytes, is_json, is_safetensors](Random& random) {
                         const bool as_bytes = one_in(random, 3);
                         if (is_json && !as_bytes) return mutated_json(sound, random);
                         if (is_safetensors && !as_bytes) return mutated_safetensors(sound, random);
                         return mutated(sound, random);
                       },
                       [on_disk](const std::string& bytes) { on_disk->load(bytes); }, other_bytes});
  }
}

}  // namespace minfer::test
