#include "models/tokenizer/regex_parser.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "models/tokenizer/unicode_tables.h"

// Source: Oniguruma's doc/RE, and its behavior within the tokenizers package where that is silent.
namespace minfer {
namespace {

using Kind = RegexNode::Kind;

constexpr int kMaxDepth = 50;  // groups, classes and quantifiers within another; parsing recurses
constexpr int64_t kMaxRepeat = 100'000;
constexpr size_t kMaxRanges = 1 << 20;

int64_t product(int64_t count, int64_t chars) {
  if (count == 0 || chars == 0) return 0;
  if (count > RegexNode::kUnbounded / chars) return RegexNode::kUnbounded;
  return count * chars;
}

int64_t sum(int64_t a, int64_t b) {
  return a > RegexNode::kUnbounded - b ? RegexNode::kUnbounded : a + b;
}

// Recursion is as deep as the pattern is nested.
bool contains(const RegexNode& node, Kind kind) {
  return node.kind == kind || std::ranges::any_of(node.children, [&](const RegexNode& child) {
           return contains(child, kind);
         });
}

[[noreturn]] void refuse_pattern(std::string_view why) {
  throw Error(ErrorKind::Input, std::string(why));
}

// Where a match begins would depend on what is tried and given up.
void require_no_keep(const RegexNode& node) {
  if (contains(node, Kind::Keep)) refuse_pattern("\\K within another group is not supported");
}

RegexNode around(Kind kind, RegexNode child) {
  require_no_keep(child);
  RegexNode node;
  node.kind = kind;
  if (kind == Kind::Atomic) {
    node.min_chars = child.min_chars;
    node.max_chars = child.max_chars;
  }
  node.children.push_back(std::move(child));
  return node;
}

RegexNode look(RegexNode child, bool behind, bool negated) {
  if (behind && child.min_chars != child.max_chars && contains(child, Kind::Atomic))
    refuse_pattern("a possessive look behind of no fixed length is not supported");
  RegexNode node = around(Kind::Look, std::move(child));
  node.behind = behind;
  node.negated = negated;
  return node;
}

RegexNode anchor_node(RegexAnchor anchor) {
  RegexNode node;
  node.kind = Kind::Anchor;
  node.anchor = anchor;
  return node;
}

RegexNode concat(std::vector<RegexNode> children) {
  if (children.size() == 1) return std::move(children[0]);
  RegexNode node;
  for (const RegexNode& child : children) {
    node.min_chars = sum(node.min_chars, child.min_chars);
    node.max_chars = sum(node.max_chars, child.max_chars);
  }
  node.children = std::move(children);
  return node;
}

RegexNode alternate(std::vector<RegexNode> children) {
  if (children.size() == 1) return std::move(children[0]);
  RegexNode node;
  node.kind = Kind::Alternate;
  node.min_chars = RegexNode::kUnbounded;
  for (const RegexNode& child : children) {
    node.min_chars = std::min(node.min_chars, child.min_chars);
    node.max_chars = std::max(node.max_chars, child.max_chars);
  }
  node.children = std::move(children);
  return node;
}

RegexNode repeat(RegexNode target, int64_t min, int64_t max, bool lazy) {
  require_no_keep(target);
  RegexNode node;
  node.kind = Kind::Repeat;
  node.min = min;
  node.max = max;
  node.lazy = lazy;
  node.min_chars = product(min, target.min_chars);
  node.max_chars = product(max, target.max_chars);
  node.children.push_back(std::move(target));
  return node;
}

}  // namespace

void RegexParser::refuse(std::string_view why) { refuse_pattern(why); }

bool RegexParser::take(std::string_view text) {
  if (!rest_.starts_with(text)) return false;
  rest_.remove_prefix(text.size());
  return true;
}

char32_t RegexParser::next() {
  if (at_end()) refuse("ends too early");
  const size_t n = utf8_char_bytes(rest_);
  if (n == 0) refuse("is not UTF-8");
  const char32_t code = utf8_code(rest_);
  rest_.remove_prefix(n);
  return code;
}

// Comments, and blanks under (?x).
void RegexParser::skip_ignored(const Options& options) {
  while (!at_end()) {
    if (take("(?#")) {
      while (!take(")")) {
        take("\\");
        next();
      }
    } else if (options.extended && std::string_view(" \t\n\r\f").find(rest_[0]) != rest_.npos) {
      rest_.remove_prefix(1);
    } else if (options.extended && take("#")) {
      while (!at_end() && !take("\n")) next();
    } else {
      return;
    }
  }
}

void RegexParser::charge(const CodeSet& set) {
  n_ranges_ += set.ranges().size();
  if (n_ranges_ > kMaxRanges) refuse("its classes are too large");
}

RegexNode RegexParser::set_node(const CodeSet& set) {
  charge(set);
  RegexNode node;
  node.kind = Kind::Set;
  node.min_chars = node.max_chars = 1;
  const auto [found, is_new] =
      set_ids_.try_emplace(set.ranges(), static_cast<uint32_t>(sets_.size()));
  if (is_new) sets_.push_back(set);
  node.set = found->second;
  return node;
}

RegexNode RegexParser::literal(char32_t code, const Options& options) {
  if (!options.ignore_case) return set_node(CodeSet(code));
  const std::u32string folded = case_folded(code);
  folded_run_ += folded;
  const std::u32string_view run = folded_run_;
  for (const size_t n : {2, 3}) {
    if (folded.size() > 1 || (run.size() >= n && is_folding_of_one(run.substr(run.size() - n))))
      refuse("letters that one letter folds to are not supported under (?i)");
  }
  return set_node(with_case_variants(CodeSet(code)));
}

ParsedRegex RegexParser::parse() {
  RegexNode root = alternatives({}, 0);
  if (!at_end()) refuse("a closing parenthesis without an opening one");
  return {std::move(root), std::move(sets_)};
}

RegexNode RegexParser::alternatives(Options options, int depth) {
  if (depth > kMaxDepth) refuse(cat("nested more than ", kMaxDepth, " deep"));
  std::vector<RegexNode> branches;
  do {
    branches.push_back(branch(options, depth));
  } while (take("|"));
  return alternate(std::move(branches));
}

RegexNode RegexParser::branch(const Options& options, int depth) {
  std::vector<RegexNode> items;
  folded_run_.clear();
  for (skip_ignored(options); !at_end() && rest_[0] != '|' && rest_[0] != ')';
       skip_ignored(options)) {
    items.push_back(quantified(atom(options, depth), options, depth));
  }
  folded_run_.clear();
  return concat(std::move(items));
}

RegexNode RegexParser::quantified(RegexNode target, const Options& options, int depth) {
  for (skip_ignored(options);; skip_ignored(options)) {
    const std::optional<Quantifier> count = quantifier();
    if (!count) return target;
    if (target.kind == Kind::Look || target.kind == Kind::Anchor || target.kind == Kind::Keep)
      refuse("a quantifier behind what takes no character");
    if (++depth > kMaxDepth) refuse(cat("more than ", kMaxDepth, " quantifiers on another"));
    target = repeat(std::move(target), count->min, count->max, count->lazy);
    if (count->possessive) target = around(Kind::Atomic, std::move(target));
  }
}

std::optional<RegexParser::Quantifier> RegexParser::quantifier() {
  std::optional<Quantifier> count;
  if (take("*"))
    count = {0, RegexNode::kUnbounded};
  else if (take("+"))
    count = {1, RegexNode::kUnbounded};
  else if (take("?"))
    count = {0, 1};
  else
    return interval();
  count->lazy = take("?");
  count->possessive = !count->lazy && take("+");
  return count;
}

// {n}, {n,}, {n,m}, {,m}; {m,n} with m above n is {n,m} possessive. What else begins with a brace
// stands for itself. {n}? is {n} or nothing, and no interval becomes possessive by a plus.
std::optional<RegexParser::Quantifier> RegexParser::interval() {
  const std::string_view start = rest_;
  const auto count_of = [&]() -> std::optional<int64_t> {
    std::optional<int64_t> value;
    while (!at_end() && rest_[0] >= '0' && rest_[0] <= '9') {
      value = value.value_or(0) * 10 + (rest_[0] - '0');
      if (*value > kMaxRepeat) refuse(cat("repeats more than ", kMaxRepeat, " times"));
      rest_.remove_prefix(1);
    }
    return value;
  };
  if (!take("{")) return {};
  const std::optional<int64_t> low = count_of();
  const bool exact = !take(",");
  const std::optional<int64_t> high = exact ? low : count_of();
  if ((!low && !high) || !take("}")) {
    rest_ = start;
    return {};
  }
  Quantifier count{low.value_or(0), high.value_or(RegexNode::kUnbounded)};
  if (count.min > count.max) {
    std::swap(count.min, count.max);
    count.possessive = true;
  }
  count.lazy = !exact && !count.possessive && take("?");
  return count;
}

RegexNode RegexParser::atom(const Options& options, int depth) {
  if (quantifier()) refuse("a quantifier behind nothing");
  const char32_t code = next();
  if (code != '\\' && (code < 0x80 && std::string_view("(^$.[").find(static_cast<char>(code)) !=
                                          std::string_view::npos))
    folded_run_.clear();
  switch (code) {
    case '(':
      return group(options, depth + 1);
    case '[':
      return set_node(char_class(options, depth + 1));
    case '.':
      return set_node(options.dot_all ? CodeSet().inverted() : CodeSet(U'\n').inverted());
    case '^':
      return anchor_node(RegexAnchor::LineBegin);
    case '$':
      return anchor_node(RegexAnchor::LineEnd);
    case '\\':
      return escaped(options);
    default:
      return literal(code, options);
  }
}

RegexNode RegexParser::escaped(const Options& options) {
  constexpr std::pair<char, RegexAnchor> kAnchors[] = {
      {'A', RegexAnchor::TextBegin},     {'z', RegexAnchor::TextEnd},
      {'Z', RegexAnchor::TextEndOrLine}, {'G', RegexAnchor::SearchBegin},
      {'b', RegexAnchor::WordBoundary},  {'B', RegexAnchor::NoWordBoundary}};
  for (const auto& [letter, anchor] : kAnchors) {
    if (take(std::string_view(&letter, 1))) {
      folded_run_.clear();
      return anchor_node(anchor);
    }
  }
  if (take("K")) {
    RegexNode keep;
    keep.kind = Kind::Keep;
    return keep;
  }
  if (take("R")) {  // one line break, \r\n before its parts
    const CodeSet breaks({{0x0a, 0x0d}, {0x85, 0x85}, {0x2028, 0x2029}});
    RegexNode both = concat({set_node(CodeSet(U'\r')), set_node(CodeSet(U'\n'))});
    return around(Kind::Atomic, alternate({std::move(both), set_node(breaks)}));
  }
  const Escape escape = class_escape(false);
  if (escape.code) return literal(*escape.code, options);
  folded_run_.clear();
  return set_node(escape.set);
}

RegexNode RegexParser::closed(RegexNode node) {
  if (!take(")")) refuse("a parenthesis is not closed");
  return node;
}

RegexNode RegexParser::group(const Options& options, int depth) {
  const auto inner = [&] { return closed(alternatives(options, depth)); };
  if (!take("?")) return inner();
  if (take(":")) return inner();
  if (take(">")) return around(Kind::Atomic, inner());
  if (take("=")) return look(inner(), false, false);
  if (take("!")) return look(inner(), false, true);
  if (take("<=")) return look(inner(), true, false);
  if (take("<!")) return look(inner(), true, true);
  if (starts_with("<") || starts_with("'")) {
    const std::string_view end = starts_with("<") ? ">" : "'";
    next();
    if (take(end)) refuse("a group with an empty name");
    while (!take(end)) next();
    return inner();
  }
  if (starts_with("~") || starts_with("(") || starts_with("{"))
    refuse(cat("groups that begin with (?", rest_[0], " are not supported"));
  return option_group(options, depth);
}

// (?i-m:...) for a group, (?i) up to the end of the group that it stands in, over | too.
RegexNode RegexParser::option_group(Options options, int depth) {
  for (bool on = true;;) {
    if (take("-")) {
      on = false;
    } else if (take("i")) {
      options.ignore_case = on;
    } else if (take("m")) {
      options.dot_all = on;
    } else if (take("x")) {
      options.extended = on;
    } else if (take(":")) {
      return closed(alternatives(options, depth));
    } else if (take(")")) {
      return alternatives(options, depth);
    } else {
      refuse("a group option that is not supported");
    }
  }
}

ParsedRegex parse_regex(std::string_view pattern) { return RegexParser(pattern).parse(); }

}  // namespace minfer
