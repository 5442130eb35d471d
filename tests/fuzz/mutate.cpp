#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz_target.h"

namespace minfer::test {
namespace {

using nlohmann::json;

void collect(json& node, std::vector<json*>& nodes) {
  nodes.push_back(&node);
  if (!node.is_structured()) return;
  for (json& child : node) collect(child, nodes);
}

std::string odd_string(Random& random) {
  const std::string kOdd[] = {"",    " ",      "\xe2\x96\x81", std::string(1, '\0'), "<0x0A>",
                              "a b", "\u200d", "null",         std::string(300, 'x')};
  return any_of(random, kOdd);
}

json odd_value(Random& random) {
  const json kOdd[] = {nullptr,
                       true,
                       false,
                       0,
                       -1,
                       1,
                       3,
                       255,
                       65536,
                       INT32_MAX,
                       INT64_MAX,
                       INT64_MIN,
                       UINT64_MAX,
                       0.5,
                       -2.5,
                       1e308,
                       std::numeric_limits<double>::denorm_min(),
                       json::array(),
                       json::object(),
                       json::array({nullptr}),
                       json::array({1, "a"}),
                       json::array({json::array()}),
                       json::object({{"type", "x"}}),
                       json::object({{"String", "a"}}),
                       json::object({{"Regex", "a+"}})};
  return one_in(random, 4) ? json(odd_string(random)) : any_of(random, kOdd);
}

void change(json& root, Random& random) {
  std::vector<json*> nodes;
  collect(root, nodes);
  json& node = *any_of(random, nodes);
  json& other = *any_of(random, nodes);
  switch (below(random, 7)) {
    case 0:
      node = odd_value(random);
      break;
    case 1: {
      json copy = other;
      node = std::move(copy);
      break;
    }
    case 2:  // one member less
      if (node.is_array() && !node.empty())
        node.erase(below(random, node.size()));
      else if (node.is_object() && !node.empty())
        node.erase(std::next(node.begin(), static_cast<int64_t>(below(random, node.size()))));
      break;
    case 3:  // one more
      if (node.is_array())
        node.push_back(node.empty() || one_in(random, 2) ? odd_value(random) : node[0]);
      if (node.is_object()) node[odd_string(random)] = odd_value(random);
      break;
    case 4: {  // under another name
      if (!node.is_object() || node.empty()) break;
      const auto member = std::next(node.begin(), static_cast<int64_t>(below(random, node.size())));
      json value = *member;
      const std::string name = one_in(random, 2) ? odd_string(random) : member.key() + "x";
      node.erase(member);
      node[name] = std::move(value);
      break;
    }
    case 5:  // inside itself
      node = one_in(random, 2) ? json::array({node}) : json::object({{"type", node}});
      break;
    case 6:
      if (node.is_number_integer())
        node = static_cast<int64_t>(node.get<uint64_t>() + below(random, 5) - 2);
      if (node.is_string()) node = mutated(node.get<std::string>(), random);
      break;
  }
}

// What Python writes, and a key twice.
std::string with_pythons(std::string text, Random& random) {
  const size_t at = text.find(':', below(random, text.size() + 1));
  if (at == text.npos) return text;
  constexpr const char* kWords[] = {"NaN",        "Infinity", "-Infinity", "1e999",
                                    "-0.0",       "1e-999",   "[NaN]",     "\"\\ud83e\\ude77\"",
                                    "\"\\ud83e\""};
  const size_t key = text.rfind(',', at);
  const std::string name = key == text.npos ? "\"a\"" : text.substr(key + 1, at - key - 1);
  const std::string insertion = name + ":" + any_of(random, kWords);
  if (key != text.npos) text.insert(key, "," + insertion);
  return text;
}

}  // namespace

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
        const uint64_t value = any_of(random, kLimits);
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

std::string mutated_json(const std::string& text, Random& random) {
  json root = json::parse(text, nullptr, false);
  if (root.is_discarded()) return text;
  for (size_t n = below(random, 4); n > 0; --n) change(root, random);
  std::string changed =
      root.dump(one_in(random, 4) ? 1 : -1, ' ', one_in(random, 4), json::error_handler_t::replace);
  if (one_in(random, 8)) changed = with_pythons(std::move(changed), random);
  if (one_in(random, 8)) changed = mutated(std::move(changed), random);
  if (one_in(random, 32)) changed = "\xef\xbb\xbf" + changed;
  return changed;
}

std::string random_text(Random& random, const std::vector<std::string>& pieces) {
  static const std::string kBits[] = {"a",    "b",        "ab",           " ",
                                      "  ",   "\n",       "\t",           "1",
                                      "23",   ".",        "\xc3\xa9",     "e\xcc\x81",
                                      "\xff", "\xe2\x96", "\xe2\x96\x81", "\xf0\x9f\xa9\xb7",
                                      "<s>",  "<0x0A>",   "\xc2\xa0",     std::string(1, '\0'),
                                      "\x01", "don't",    "\xe4\xbd\xa0", "\xef\xb7\xba"};
  std::string text;
  for (size_t n = below(random, 24); n > 0; --n)
    text += pieces.empty() || one_in(random, 2) ? any_of(random, kBits) : any_of(random, pieces);
  if (one_in(random, 16))
    text = std::string(1, 'a') + std::string(400, text.empty() ? 'b' : text[0]);
  return text;
}

}  // namespace minfer::test
