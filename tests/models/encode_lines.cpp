// For scripts/compare_tokenizers.py: the ids of many texts in one run.
// usage: encode_lines TOKENIZER. Each line of stdin is a JSON string (a text) or a JSON list (ids);
// each line of stdout is the list of its ids with control tokens parsed, or the text without them.
#include <iostream>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "models/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  using minfer::TokenId;
  using nlohmann::json;
  if (argc != 2) return 2;
  try {
    const auto tokenizer = minfer::load_tokenizer(argv[1]);
    std::string line;
    while (std::getline(std::cin, line)) {
      const json given = json::parse(line);
      json answer;
      if (given.is_string())
        answer = tokenizer->encode(given.get<std::string>(), {.parse_special = true});
      else
        answer = tokenizer->decode(given.get<std::vector<TokenId>>());
      std::cout << answer.dump(-1, ' ', true, json::error_handler_t::replace) << '\n';
    }
  } catch (const minfer::Error& e) {
    std::cerr << e.what() << '\n';
    return 3;
  }
  return 0;
}
