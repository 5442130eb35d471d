#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace minfer::test {

// A charsmap: the u32 size of the trie in bytes, the trie, then the replacements.
inline std::string charsmap_of(const std::vector<uint32_t>& units,
                               const std::string& replacements) {
  const auto n_bytes = static_cast<uint32_t>(units.size() * 4);
  std::string bytes(reinterpret_cast<const char*>(&n_bytes), 4);
  bytes.append(reinterpret_cast<const char*>(units.data()), n_bytes);
  return bytes + replacements;
}

// Builds a valid charsmap, packed as Darts-clone packs it, from rules: the text to replace (not
// empty, without NUL) and its replacement.
class CharsmapBuilder {
 public:
  explicit CharsmapBuilder(const std::map<std::string, std::string>& rules) {
    Node root;
    for (const auto& [from, to] : rules) {
      Node* node = &root;
      for (const char byte : from) node = &node->children[static_cast<uint8_t>(byte)];
      node->value = static_cast<int64_t>(replacements_.size());
      replacements_ += to + '\0';
    }
    if (replacements_.empty()) replacements_ = std::string(1, '\0');
    take(0);
    units_[0] = 0;
    place(root, 0);
  }
  std::string bytes() const { return charsmap_of(units_, replacements_); }

 private:
  struct Node {
    int64_t value = -1;  // offset of its replacement; -1: none
    std::map<uint8_t, Node> children;
  };
  static constexpr uint32_t kUnused = 1u << 31;  // never followed: it has the value bit

  // Grows the trie to the end of this unit's block of 256.
  void grow(size_t unit) {
    if (unit < units_.size()) return;
    units_.resize((unit | 0xff) + 1, kUnused);
    taken_.resize(units_.size());
  }
  void take(size_t unit) {
    grow(unit);
    taken_[unit] = true;
  }
  bool is_free(size_t unit) const { return unit >= taken_.size() || !taken_[unit]; }

  bool fits(const Node& node, size_t base) const {
    bool all_free = base >= bases_.size() || !bases_[base];
    if (node.value >= 0) all_free = all_free && is_free(base);
    for (const auto& [byte, child] : node.children) all_free = all_free && is_free(base ^ byte);
    return all_free;
  }

  // Places the children of the node that `unit` leads to.
  void place(const Node& node, size_t unit) {
    size_t base = 1;
    while (!fits(node, base)) ++base;
    grow(base);
    if (bases_.size() <= base) bases_.resize(base + 1);
    bases_[base] = true;
    units_[unit] |= static_cast<uint32_t>(unit ^ base) << 10;
    if (node.value >= 0) {
      units_[unit] |= 1u << 8;
      take(base);
      units_[base] = 1u << 31 | static_cast<uint32_t>(node.value);
    }
    for (const auto& [byte, child] : node.children) {
      take(base ^ byte);
      units_[base ^ byte] = byte;
    }
    for (const auto& [byte, child] : node.children) place(child, base ^ byte);
  }

  std::vector<uint32_t> units_;
  std::vector<bool> taken_, bases_;
  std::string replacements_;
};

}  // namespace minfer::test
