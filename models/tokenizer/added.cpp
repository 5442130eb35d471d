#include "models/tokenizer/added.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "models/tokenizer/characters.h"

namespace minfer {

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) {
  std::vector<std::pair<std::string, int32_t>> reversed;
  size_t n_bytes = 0;
  for (const AddedToken& token : tokens) {
    if (token.text.empty()) continue;
    n_bytes += token.text.size();
    MINFER_REQUIRE(Input, n_bytes <= kMaxAddedBytes, "the added tokens are longer than ",
                   kMaxAddedBytes, " bytes together");
    reversed.emplace_back(std::string(token.text.rbegin(), token.text.rend()),
                          static_cast<int32_t>(tokens_.size()));
    tokens_.push_back({token.id, token.single_word, token.lstrip, token.rstrip, token.text.size()});
  }
  if (tokens_.empty()) return;
  std::ranges::sort(reversed);
  const auto same_text = [](const auto& a, const auto& b) { return a.first == b.first; };
  reversed.erase(std::unique(reversed.begin(), reversed.end(), same_text), reversed.end());
  build(reversed);
}

// Level by level, so that the children of a node lie side by side, sorted.
void AddedTokens::build(const std::vector<std::pair<std::string, int32_t>>& reversed) {
  struct Range {
    size_t begin, end, depth, parent;  // of `reversed`
  };
  nodes_.push_back({});
  std::vector<Range> ranges = {{0, reversed.size(), 0, 0}};
  for (size_t node = 0; node < nodes_.size(); ++node) {
    auto [begin, end, depth, parent] = ranges[node];
    if (reversed[begin].first.size() == depth) nodes_[node].token = reversed[begin++].second;
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char label = reversed[begin].first[depth];
      const size_t first = begin;
      while (begin < end && reversed[begin].first[depth] == label) ++begin;
      ++nodes_[node].n_children;
      nodes_.push_back({.label = label});
      ranges.push_back({first, begin, depth + 1, node});
    }
  }
  for (size_t i = 0; i < nodes_[0].n_children; ++i) {
    const size_t node = nodes_[0].first_child + i;
    from_root_[static_cast<unsigned char>(nodes_[node].label)] = static_cast<uint32_t>(node);
  }
  for (size_t node = 1; node < nodes_.size(); ++node) {
    const size_t parent = ranges[node].parent;
    if (parent != 0)
      nodes_[node].fail = static_cast<uint32_t>(step(nodes_[parent].fail, nodes_[node].label));
    if (nodes_[node].token < 0) nodes_[node].token = nodes_[nodes_[node].fail].token;
  }
}

int64_t AddedTokens::child(size_t node, char label) const {
  const auto begin = nodes_.begin() + nodes_[node].first_child;
  const auto end = begin + nodes_[node].n_children;
  const auto less = [](char a, char b) {  // as std::string compares
    return static_cast<unsigned char>(a) < static_cast<unsigned char>(b);
  };
  const auto found = std::ranges::lower_bound(begin, end, label, less, &Node::label);
  return found != end && found->label == label ? found - nodes_.begin() : -1;
}

size_t AddedTokens::step(size_t node, char label) const {
  while (node != 0) {
    if (const int64_t next = child(node, label); next >= 0) return static_cast<size_t>(next);
    node = nodes_[node].fail;
  }
  return from_root_[static_cast<unsigned char>(label)];
}

void AddedTokens::find(std::string_view text, size_t offset, std::vector<Match>& matches) const {
  if (tokens_.empty()) return;
  std::vector<std::pair<size_t, int32_t>> begins;  // of the longest token at each byte, backwards
  size_t node = 0;
  for (size_t at = text.size(); at-- > 0;) {
    node = step(node, text[at]);
    if (nodes_[node].token >= 0) begins.emplace_back(at, nodes_[node].token);
  }
  size_t done = 0;
  for (auto begin = begins.rbegin(); begin != begins.rend(); ++begin) {
    if (begin->first < done) continue;
    const Member& token = tokens_[static_cast<size_t>(begin->second)];
    done = begin->first + token.n_bytes;
    matches.push_back({token.id, token.single_word, token.lstrip, token.rstrip,
                       offset + begin->first, offset + done});
  }
}

std::vector<TextFragment> cut_at(std::string_view text,
                                 const std::vector<AddedTokens::Match>& matches) {
  std::vector<TextFragment> fragments;
  size_t done = 0, space_end = 0;  // where the last run of white space that was asked for ends
  for (const AddedTokens::Match& match : matches) {
    size_t begin = match.begin, end = match.end;
    if (match.single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end))))
      continue;
    if (match.lstrip && done < begin)
      begin = done + without_trailing_white_space(text.substr(done, begin - done)).size();
    if (match.rstrip) {
      if (end >= space_end)
        space_end = text.size() - without_leading_white_space(text.substr(end)).size();
      end = space_end;
    }
    if (done < begin) fragments.push_back({-1, done, begin});
    fragments.push_back({match.id, begin, end});
    done = end;
  }
  if (done < text.size()) fragments.push_back({-1, done, text.size()});
  return fragments;
}

}  // namespace minfer
