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
  bool special = false;                 // a control token: found only with parse_special
  bool single_word = false;             // not found beside a word character (characters.h)
  bool lstrip = false, rstrip = false;  // takes the white space on that side with it
  bool normalized = false;              // found in the normalized text, by its normalized spelling
};

// The most bytes of text that all added tokens of one tokenizer may have together.
inline constexpr size_t kMaxAddedBytes = 1 << 20;

// Leftmost-longest search for a set of tokens: an Aho-Corasick automaton over the reversed texts,
// which is run from the end of the text and so knows at each byte the longest token that begins
// there. It takes time linear in the text and memory linear in the tokens.
class AddedTokens {
 public:
  AddedTokens() = default;
  // If two tokens have the same text, the first counts. Tokens without text are left out.
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  struct Match {
    TokenId id;
    bool single_word, lstrip, rstrip;
    size_t begin, end;
  };
  // Appends the matches, which do not overlap, with `offset` added to each position.
  void find(std::string_view text, size_t offset, std::vector<Match>& matches) const;
  bool empty() const { return tokens_.empty(); }

 private:
  struct Node {
    uint32_t first_child = 0, fail = 0;
    int32_t token = -1;  // index of the longest token that this path ends with; -1: none
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

// A part of a text: a token, or the text between two tokens.
struct TextFragment {
  TokenId id;  // -1: text
  size_t begin, end;
};

// Cuts `text` at the matches as their flags say. A match inside white space that the match before
// it has taken (rstrip) is still a token.
std::vector<TextFragment> cut_at(std::string_view text,
                                 const std::vector<AddedTokens::Match>& matches);

}  // namespace minfer
