#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/tensor.h"

namespace minfer {

// A token that is found in a text before the text is cut into words. Field names are those of a
// tokenizer.json.
struct AddedToken {
  TokenId id = -1;
  std::string text;
  bool special = false;                 // a control token: found only where the text may hold such
  bool single_word = false;             // not between letters, digits or marks
  bool lstrip = false, rstrip = false;  // takes the white space on that side with it
  bool normalized = false;              // found in the normalized text, by its normalized spelling
};

// What all added tokens of one tokenizer may hold together, in bytes of text.
inline constexpr size_t kMaxAddedBytes = 1 << 20;

// Leftmost-longest search for a set of tokens: an Aho-Corasick automaton over the reversed texts,
// which is run from the end of the text and so knows at each byte the longest token that begins
// there. Time linear in the text, memory linear in the tokens.
class AddedTokens {
 public:
  AddedTokens() = default;
  // Where two have one text, the earlier counts; those without text are left out.
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  struct Match {
    TokenId id;
    bool single_word, lstrip, rstrip;
    size_t begin, end;
  };
  // Appends the matches that do not overlap, `offset` added to each position.
  void find(std::string_view text, size_t offset, std::vector<Match>& matches) const;
  bool empty() const { return tokens_.empty(); }

 private:
  struct Node {
    uint32_t first_child = 0, fail = 0;
    int32_t token = -1;  // index of the longest token that ends this path; -1: none
    uint16_t n_children = 0;
    char label = 0;
  };
  struct Member {
    TokenId id;
    bool single_word, lstrip, rstrip;
    size_t n_bytes;
  };
  int64_t child(size_t node, char label) const;
  size_t step(size_t node, char label) const;
  void build(const std::vector<std::pair<std::string, int32_t>>& reversed);

  std::vector<Node> nodes_;
  std::array<uint32_t, 256> from_root_{};
  std::vector<Member> tokens_;
};

// A stretch of a text: a token, or text between tokens.
struct TextFragment {
  TokenId id;  // -1: text
  size_t begin, end;
};

// Cuts `text` at the matches as their flags say. A match inside the white space that the one before
// took is still a token.
std::vector<TextFragment> cut_at(std::string_view text,
                                 const std::vector<AddedTokens::Match>& matches);

}  // namespace minfer
