#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "loaders/file.h"
#include "tests/fuzz/fuzz_sample.h"

// Stands in for libFuzzer where the compiler has none:
//
//   MINFER_FUZZ_SAMPLE=Gguf fuzz_loader --runs N --seed S   N random changes of the sample
//   MINFER_FUZZ_SAMPLE=Gguf fuzz_loader FILE...             these files as they are
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t n) { return static_cast<size_t>(random() % n); }

// Few changes, so that most of the file stays sound and the later checks are reached.
std::string mutated(std::string bytes, Random& random) {
  for (size_t n = 1 + below(random, 4); n > 0 && !bytes.empty(); --n) {
    const size_t at = below(random, bytes.size());
    switch (below(random, 6)) {
      case 0:  // one bit
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(random, 8)));
        break;
      case 1:  // one byte
        bytes[at] = static_cast<char>(random());
        break;
      case 2: {  // an integer of 8 bytes, at its limits
        constexpr uint64_t kLimits[] = {0, 1, ~0ull, ~0ull >> 1, 1ull << 32, 1ull << 62};
        const uint64_t value = kLimits[below(random, std::size(kLimits))];
        std::memcpy(bytes.data() + at, &value, std::min(sizeof value, bytes.size() - at));
        break;
      }
      case 3:  // cut
        bytes.resize(at);
        break;
      case 4:  // a piece twice
        bytes.insert(at, bytes.substr(below(random, bytes.size()), below(random, 40)));
        break;
      case 5:  // a piece gone
        bytes.erase(at, below(random, 40));
        break;
    }
  }
  return bytes;
}

void run(std::string_view bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

uint64_t number(const char* text) {
  uint64_t value = 0;
  std::from_chars(text, text + std::strlen(text), value);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::string_view(argv[1]) == "--runs") {
    Random random(number(argv[4]));
    const std::string sound = minfer::test::fuzz_sample().bytes;
    for (uint64_t i = number(argv[2]); i > 0; --i) run(mutated(sound, random));
    return 0;
  }
  for (int i = 1; i < argc; ++i) run(minfer::read_whole_file(argv[i], UINT64_MAX));
  return 0;
}
