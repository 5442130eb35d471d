// Cuts texts into words, for scripts/compare_patterns.py. A line of the input has three fields: the
// word "pattern" or "name"; a pattern or a name of tokenizer.ggml.pre, in hex; and a text, in hex.
// The line of the output has the length of each word in bytes, or "refused" and the reason.
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "kernels/base/error.h"
#include "models/tokenizer/split.h"

namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::strtol(hex.substr(i, 2).c_str(), nullptr, 16));
  return bytes;
}

minfer::TextSplitter splitter_of(const std::string& kind, const std::string& source) {
  if (kind == "name") return minfer::pre_tokenizer_by_name(source).splitter;
  minfer::TextSplitter splitter;
  splitter.add_step(source);
  return splitter;
}

}  // namespace

int main() {
  std::map<std::string, minfer::TextSplitter> splitters;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream fields(line);
    std::string kind, source, text;
    fields >> kind >> source >> text;
    try {
      if (!splitters.contains(kind + source))
        splitters[kind + source] = splitter_of(kind, from_hex(source));
      const std::string bytes = from_hex(text);
      for (const std::string_view word : splitters[kind + source].split(bytes))
        std::cout << word.size() << ' ';
      std::cout << '\n';
    } catch (const minfer::Error& e) {
      std::cout << "refused " << e.what() << '\n';
    }
  }
}
