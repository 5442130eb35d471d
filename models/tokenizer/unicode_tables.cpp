#include "models/tokenizer/unicode_tables.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "kernels/base/error.h"

// Source: Unicode Character Database 16.0, Annex 44 for the derived properties, and Oniguruma's
// doc/RE for the POSIX classes.
namespace minfer {
namespace {

struct Run {
  char32_t first;  // to before the next one's
  uint8_t value;
};
struct ScriptName {
  std::string_view code, name;
};
struct Fold {
  char32_t from, to;
};
struct MultipleFold {
  char32_t from, to[3];  // the last one 0: two
  std::u32string_view text() const { return {to, to[2] == 0 ? 2u : 3u}; }
};
struct Property {
  std::string_view name;
  std::span<const CodeRange> ranges;
};
#include "models/tokenizer/unicode_tables_data.inc"

struct LongName {
  std::string_view code, name;
};
constexpr LongName kCategoryLongNames[] = {
    {"C", "Other"},
    {"Cc", "Control"},
    {"Cf", "Format"},
    {"Cn", "Unassigned"},
    {"Co", "PrivateUse"},
    {"Cs", "Surrogate"},
    {"L", "Letter"},
    {"LC", "CasedLetter"},
    {"Ll", "LowercaseLetter"},
    {"Lm", "ModifierLetter"},
    {"Lo", "OtherLetter"},
    {"Lt", "TitlecaseLetter"},
    {"Lu", "UppercaseLetter"},
    {"M", "Mark"},
    {"M", "CombiningMark"},
    {"Mc", "SpacingMark"},
    {"Me", "EnclosingMark"},
    {"Mn", "NonspacingMark"},
    {"N", "Number"},
    {"Nd", "DecimalNumber"},
    {"Nl", "LetterNumber"},
    {"No", "OtherNumber"},
    {"P", "Punctuation"},
    {"P", "Punct"},
    {"Pc", "ConnectorPunctuation"},
    {"Pd", "DashPunctuation"},
    {"Pe", "ClosePunctuation"},
    {"Pf", "FinalPunctuation"},
    {"Pi", "InitialPunctuation"},
    {"Po", "OtherPunctuation"},
    {"Ps", "OpenPunctuation"},
    {"S", "Symbol"},
    {"Sc", "CurrencySymbol"},
    {"Sk", "ModifierSymbol"},
    {"Sm", "MathSymbol"},
    {"So", "OtherSymbol"},
    {"Z", "Separator"},
    {"Zl", "LineSeparator"},
    {"Zp", "ParagraphSeparator"},
    {"Zs", "SpaceSeparator"},
};

std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == ' ' || c == '-' || c == '_') continue;
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  }
  return out;
}

template <typename Takes>
CodeSet from_runs(std::span<const Run> runs, const Takes& takes) {
  std::vector<CodeRange> ranges;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!takes(runs[i].value)) continue;
    ranges.push_back({runs[i].first, i + 1 < runs.size() ? runs[i + 1].first - 1 : kMaxCode});
  }
  return CodeSet(std::move(ranges));
}

CodeSet category(std::string_view code) {
  return from_runs(kCategoryRuns, [&](uint8_t value) {
    const std::string_view name = kCategoryNames[value];
    if (code == "LC") return name == "Lu" || name == "Ll" || name == "Lt";
    return name.starts_with(code);
  });
}

CodeSet property(std::string_view name) {
  const auto found = std::ranges::find(kProperties, name, &Property::name);
  return CodeSet({found->ranges.begin(), found->ranges.end()});
}

std::map<std::string, CodeSet> derived_classes() {
  const CodeSet alpha = property("Alphabetic"), digit = category("Nd");
  const CodeSet space = property("White_Space"), control = category("Cc");
  const CodeSet graph =
      space.united(control).united(category("Cn")).united(category("Cs")).inverted();
  return {
      {"any", CodeSet({{0, kMaxCode}})},
      {"assigned", category("Cn").inverted()},
      {"ascii", CodeSet({{0, 0x7f}})},
      {"alpha", alpha},
      {"alnum", alpha.united(digit)},
      {"blank", category("Zs").united(CodeSet(U'\t'))},
      {"cntrl", control},
      {"digit", digit},
      {"graph", graph},
      {"print", graph.united(category("Zs"))},
      {"lower", property("Lowercase")},
      {"upper", property("Uppercase")},
      {"space", space},
      {"xdigit", CodeSet({{'0', '9'}, {'A', 'F'}, {'a', 'f'}})},
      {"word", alpha.united(category("M")).united(digit).united(category("Pc"))},
  };
}

}  // namespace

bool is_white_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  return std::ranges::any_of(kWhiteSpace, [&](const CodeRange& range) {
    return range.first <= code && code <= range.last;
  });
}

std::optional<CodeSet> code_points_of(std::string_view name) {
  const std::string wanted = plain(name);
  static const std::map<std::string, CodeSet> kDerived = derived_classes();
  if (const auto found = kDerived.find(wanted); found != kDerived.end()) return found->second;
  for (const LongName& known : kCategoryLongNames) {
    if (wanted == plain(known.code) || wanted == plain(known.name)) return category(known.code);
  }
  for (const Property& known : kProperties) {
    if (wanted == plain(known.name)) return property(known.name);
  }
  for (size_t i = 0; i < std::size(kScriptNames); ++i) {
    if (wanted == plain(kScriptNames[i].code) || wanted == plain(kScriptNames[i].name))
      return from_runs(kScriptRuns, [&](uint8_t value) { return value == i; });
  }
  return {};
}

CodeSet with_case_variants(const CodeSet& set) {
  // Two passes: first what members fold to, then what folds to a member.
  std::vector<CodeRange> folded = set.ranges();
  for (const Fold& fold : kFolds) {
    if (set.contains(fold.from)) folded.push_back({fold.to, fold.to});
  }
  const CodeSet with_folded(folded);
  for (const Fold& fold : kFolds) {
    if (with_folded.contains(fold.to)) folded.push_back({fold.from, fold.from});
  }
  return CodeSet(std::move(folded));
}

std::u32string case_folded(char32_t code) {
  const auto multiple = std::ranges::find(kMultipleFolds, code, &MultipleFold::from);
  if (multiple != std::end(kMultipleFolds)) return std::u32string(multiple->text());
  const auto fold = std::ranges::lower_bound(kFolds, code, {}, &Fold::from);
  return {fold != std::end(kFolds) && fold->from == code ? fold->to : code};
}

bool is_folding_of_one(std::u32string_view folded) {
  return std::ranges::any_of(kMultipleFolds,
                             [&](const MultipleFold& fold) { return fold.text() == folded; });
}

}  // namespace minfer
