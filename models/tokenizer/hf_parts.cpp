#include "models/tokenizer/hf_parts.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"

namespace minfer {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const char* part, const std::string& what, const char* supported) {
  throw Error(ErrorKind::Input,
              cat(part, " \"", shortened(what), "\" is not supported; supported are ", supported));
}

// Work on a text is steps x text.
constexpr size_t kMaxSteps = 128;

// Calls take(component, type) for each component: one, a sequence of them, or none (null). The
// depth of the file is bounded, so this recursion is too.
void for_each_component(const json& component, const char* part, const char* members,
                        const std::function<void(const json&, const std::string&)>& take) {
  size_t n_done = 0;
  const std::function<void(const json&)> walk = [&](const json& c) {
    const auto type = c.at("type").get<std::string>();
    if (type != "Sequence") {
      MINFER_REQUIRE(Input, ++n_done <= kMaxSteps, part, ": more than ", kMaxSteps, " steps");
      return take(c, type);
    }
    require_known_fields(c, part, {"type", members});
    for (const json& member : c.at(members)) walk(member);
  };
  if (!component.is_null()) walk(component);
}

// {"String": s} or {"Regex": r}.
struct Pattern {
  std::string text;
  bool literal = false;
};

Pattern read_pattern(const json& pattern) {
  constexpr size_t kMaxLiteralBytes = 1000;  // the search may compare all of them at each byte
  require_known_fields(pattern, "pattern", {"String", "Regex"});
  const bool literal = pattern.contains("String");
  Pattern read = {pattern.at(literal ? "String" : "Regex").get<std::string>(), literal};
  MINFER_REQUIRE(Input, !literal || read.text.size() <= kMaxLiteralBytes, "pattern of ",
                 read.text.size(), " bytes, expected at most ", kMaxLiteralBytes);
  return read;
}

SplitBehavior read_behavior(const std::string& name) {
  if (name == "Isolated") return SplitBehavior::Isolated;
  if (name == "Removed") return SplitBehavior::Removed;
  if (name == "MergedWithPrevious") return SplitBehavior::MergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::MergedWithNext;
  if (name == "Contiguous") return SplitBehavior::Contiguous;
  refuse("split behavior", name,
         "Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
}

// Older files have a flag instead of the scheme, some have both.
WordStep::Prepend metaspace_scheme(const json& metaspace) {
  const std::string scheme = metaspace.value("prepend_scheme", std::string("always"));
  if (scheme != "always" && scheme != "first" && scheme != "never")
    refuse("prepend_scheme", scheme, "always, first, never");
  MINFER_REQUIRE(Input,
                 metaspace.value("add_prefix_space", true) || scheme == "never" ||
                     !metaspace.contains("prepend_scheme"),
                 "Metaspace: add_prefix_space is false, but prepend_scheme is ", scheme);
  if (scheme == "never" || !metaspace.value("add_prefix_space", true))
    return WordStep::Prepend::Never;
  return scheme == "first" ? WordStep::Prepend::First : WordStep::Prepend::Always;
}

std::string metaspace_replacement(const json& metaspace) {
  // Older files spell the same character out beside it.
  require_known_fields(
      metaspace, "Metaspace",
      {"type", "replacement", "str_rep", "prepend_scheme", "add_prefix_space", "split"});
  auto replacement = metaspace.at("replacement").get<std::string>();
  MINFER_REQUIRE(Input, utf8_char_bytes(replacement) == replacement.size() && !replacement.empty(),
                 "Metaspace: replacement \"", shortened(replacement), "\", expected one character");
  const std::string spelled = metaspace.value("str_rep", replacement);
  MINFER_REQUIRE(Input, spelled == replacement, "Metaspace: str_rep \"", shortened(spelled),
                 "\" is not the replacement");
  return replacement;
}

void add_replace(const json& step, BpeOptions& options) {
  const Pattern pattern = read_pattern(step.at("pattern"));
  NormalizeStep made{.kind = NormalizeStep::Kind::Replace,
                     .from = pattern.text,
                     .to = step.at("content").get<std::string>()};
  if (!pattern.literal) {
    made.kind = NormalizeStep::Kind::ReplaceRegex;
    made.pattern.emplace_back(pattern.text);
  }
  options.normalizer.push_back(std::move(made));
}

void add_regex_replace(const char* pattern, BpeOptions& options) {
  NormalizeStep made{.kind = NormalizeStep::Kind::ReplaceRegex};
  made.pattern.emplace_back(pattern);
  options.normalizer.push_back(std::move(made));
}

}  // namespace

void require_known_fields(const json& object, const std::string& what,
                          std::initializer_list<const char*> known) {
  for (const auto& [key, value] : object.get_ref<const json::object_t&>()) {
    const bool found = std::ranges::find(known, key) != known.end();
    MINFER_REQUIRE(Input, found, what, ": field \"", shortened(key), "\" is not known");
  }
}

void read_hf_normalizer(const json& normalizer, BpeOptions& options) {
  constexpr const char* kSupported = "NFC, NFD, Prepend, Replace, Sequence, Strip, StripAccents";
  for_each_component(
      normalizer, "normalizer", "normalizers", [&](const json& step, const std::string& type) {
        const auto fields = [&](std::initializer_list<const char*> known) {
          require_known_fields(step, "normalizer " + type, known);
        };
        if (type == "Prepend") {
          fields({"type", "prepend"});
          options.normalizer.push_back(
              {.kind = NormalizeStep::Kind::Prepend, .to = step.at("prepend").get<std::string>()});
        } else if (type == "Replace") {
          fields({"type", "pattern", "content"});
          add_replace(step, options);
        } else if (type == "NFC" || type == "NFD") {
          fields({"type"});
          options.normalizer.push_back(
              {.kind = type == "NFC" ? NormalizeStep::Kind::Nfc : NormalizeStep::Kind::Nfd});
        } else if (type == "StripAccents") {
          fields({"type"});
          add_regex_replace(R"(\p{M})", options);
        } else if (type == "Strip") {
          fields({"type", "strip_left", "strip_right"});
          if (step.at("strip_left").get<bool>())
            options.normalizer.push_back({.kind = NormalizeStep::Kind::StripLeft});
          if (step.at("strip_right").get<bool>())
            options.normalizer.push_back({.kind = NormalizeStep::Kind::StripRight});
        } else {
          refuse("normalizer", type, kSupported);
        }
      });
}

namespace {

void read_byte_level(const json& step, BpeOptions& options) {
  require_known_fields(step, "pre_tokenizer ByteLevel",
                       {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  const bool has_metaspace = std::ranges::any_of(
      options.words.steps(), [](const WordStep& s) { return s.kind == WordStep::Kind::Metaspace; });
  MINFER_REQUIRE(Input, !options.byte_level && !has_metaspace,
                 "pre_tokenizer ByteLevel behind Metaspace or ByteLevel is not supported");
  if (step.value("add_prefix_space", true))
    options.words.add({.kind = WordStep::Kind::PrefixBlank});
  if (step.value("use_regex", true)) options.words.add_split(kGpt2Pattern);
  options.byte_level = true;
}

void read_metaspace(const json& step, BpeOptions& options) {
  MINFER_REQUIRE(Input, !options.byte_level,
                 "pre_tokenizer Metaspace behind ByteLevel is not supported");
  const std::string replacement = metaspace_replacement(step);
  options.words.add({.kind = WordStep::Kind::Metaspace,
                     .replacement = replacement,
                     .prepend = metaspace_scheme(step)});
  if (step.value("split", true))
    options.words.add_split(replacement, SplitBehavior::MergedWithNext, false, true);
}

// Steps that only cut. False: `type` is none.
bool read_split(const json& step, const std::string& type, WordCutter& words) {
  // As the Rust crates that tokenizers is made of have them, which is not how Oniguruma reads them.
  constexpr const char* kSpace = R"(\p{White_Space})";
  constexpr const char* kWords =
      R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\p{White_Space}]+)";
  constexpr const char* kPunctuation = R"([\p{P}$+<=>^`|~])";
  const auto fields = [&](std::initializer_list<const char*> known) {
    require_known_fields(step, "pre_tokenizer " + type, known);
  };
  if (type == "Split") {
    fields({"type", "pattern", "behavior", "invert"});
    const Pattern pattern = read_pattern(step.at("pattern"));
    words.add_split(pattern.text, read_behavior(step.at("behavior").get<std::string>()),
                    step.value("invert", false), pattern.literal);
  } else if (type == "Digits") {
    fields({"type", "individual_digits"});
    words.add_split(step.value("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
  } else if (type == "Punctuation") {
    fields({"type", "behavior"});
    words.add_split(kPunctuation, read_behavior(step.value("behavior", std::string("Isolated"))));
  } else if (type == "Whitespace") {
    fields({"type"});
    words.add_split(kWords, SplitBehavior::Removed, true);
  } else if (type == "WhitespaceSplit") {
    fields({"type"});
    words.add_split(kSpace, SplitBehavior::Removed);
  } else if (type == "CharDelimiterSplit") {
    fields({"type", "delimiter"});
    words.add_split(step.at("delimiter").get<std::string>(), SplitBehavior::Removed, false, true);
  } else if (type == "BertPreTokenizer") {
    fields({"type"});
    words.add_split(kSpace, SplitBehavior::Removed);
    words.add_split(kPunctuation);
  } else {
    return false;
  }
  return true;
}

}  // namespace

void read_hf_pre_tokenizer(const json& pre_tokenizer, BpeOptions& options) {
  constexpr const char* kSupported =
      "BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, Metaspace, Punctuation, Sequence, "
      "Split, Whitespace, WhitespaceSplit";
  for_each_component(pre_tokenizer, "pre_tokenizer", "pretokenizers",
                     [&](const json& step, const std::string& type) {
                       if (options.byte_level && !options.spelled_words) {
                         options.words.add({.kind = WordStep::Kind::Spell});
                         options.spelled_words = true;
                       }
                       if (type == "ByteLevel") return read_byte_level(step, options);
                       if (type == "Metaspace") return read_metaspace(step, options);
                       if (!read_split(step, type, options.words))
                         refuse("pre_tokenizer", type, kSupported);
                     });
}

namespace {

// Strip works on the whole text behind Fuse and ByteLevel, on each token in front of them.
void read_decoder_strip(const json& step, bool is_fused, BpeOptions& options) {
  require_known_fields(step, "decoder Strip", {"type", "content", "start", "stop"});
  DecodeStep made{.kind = DecodeStep::Kind::Strip,
                  .from = step.at("content").get<std::string>(),
                  .n_left = step.at("start").get<size_t>(),
                  .n_right = step.at("stop").get<size_t>()};
  MINFER_REQUIRE(Input, utf8_char_bytes(made.from) == made.from.size() && !made.from.empty(),
                 "decoder Strip: content \"", shortened(made.from), "\", expected one character");
  if (!is_fused) return options.decoder.push_back(std::move(made));
  MINFER_REQUIRE(Input, made.from == " " && made.n_left == 1 && made.n_right == 0,
                 "decoder \"Strip\" of the whole text is supported for one blank in front only");
  options.strips_leading_space = true;
}

void read_decoder_replace(const json& step, BpeOptions& options) {
  require_known_fields(step, "decoder Replace", {"type", "pattern", "content"});
  const Pattern pattern = read_pattern(step.at("pattern"));
  if (!pattern.literal) refuse("decoder", "Replace by regex", "Replace by string");
  options.decoder.push_back({.kind = DecodeStep::Kind::Replace,
                             .from = pattern.text,
                             .to = step.at("content").get<std::string>()});
}

}  // namespace

void read_hf_decoder(const json& decoder, BpeOptions& options) {
  constexpr const char* kSupported =
      "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip";
  options.blank_between = decoder.is_null();
  bool is_fused = false;
  for_each_component(
      decoder, "decoder", "decoders", [&](const json& step, const std::string& type) {
        MINFER_REQUIRE(Input, !is_fused || type == "Fuse" || type == "Strip", "decoder \"",
                       shortened(type), "\" behind Fuse or ByteLevel is not supported");
        if (type == "ByteLevel") {
          require_known_fields(step, "decoder ByteLevel",
                               {"type", "add_prefix_space", "trim_offsets", "use_regex"});
          options.decoder.push_back({.kind = DecodeStep::Kind::ByteLevel});
          is_fused = true;
        } else if (type == "ByteFallback") {
          require_known_fields(step, "decoder ByteFallback", {"type"});
          options.decoder.push_back({.kind = DecodeStep::Kind::ByteFallback});
        } else if (type == "Metaspace") {
          options.decoder.push_back(
              {.kind = DecodeStep::Kind::Replace, .from = metaspace_replacement(step), .to = " "});
          options.strips_leading_space = metaspace_scheme(step) != WordStep::Prepend::Never;
        } else if (type == "Replace") {
          read_decoder_replace(step, options);
        } else if (type == "Strip") {
          read_decoder_strip(step, is_fused, options);
        } else if (type == "Fuse") {
          require_known_fields(step, "decoder Fuse", {"type"});
          is_fused = true;
        } else {
          refuse("decoder", type, kSupported);
        }
      });
}

namespace {

// The token of a template, which must stand for one id.
int64_t template_id(const json& processor, const json& item) {
  const json& token = item.at("SpecialToken");
  require_known_fields(token, "post_processor SpecialToken", {"id", "type_id"});
  const auto name = token.at("id").get<std::string>();
  const json& special = processor.at("special_tokens").at(name);
  require_known_fields(special, "post_processor special_tokens", {"id", "ids", "tokens"});
  const json& ids = special.at("ids");
  MINFER_REQUIRE(Input, ids.size() == 1, "post_processor: \"", shortened(name), "\" stands for ",
                 ids.size(), " ids, expected one");
  return ids[0].get<int64_t>();
}

void set_bos(int64_t id, TokenizerSpec& spec) {
  MINFER_REQUIRE(Input, !spec.adds_bos,
                 "post_processor: more than one token in front of the text is not supported");
  MINFER_REQUIRE(Input, id >= 0 && id < static_cast<int64_t>(spec.pieces.size()),
                 "post_processor: id ", id, ", the vocabulary has ", spec.pieces.size(), " pieces");
  spec.bos = static_cast<TokenId>(id);
  spec.adds_bos = true;
}

void note_end(TokenizerSpec& spec) {
  spec.notes.push_back(
      "the tokenizer's file puts a token behind a text; a prompt goes on and does not get it");
}

void read_template(const json& step, TokenizerSpec& spec) {
  require_known_fields(step, "post_processor TemplateProcessing",
                       {"type", "single", "pair", "special_tokens"});
  bool behind = false;  // of the text
  for (const json& item : step.at("single")) {
    require_known_fields(item, "post_processor", {"SpecialToken", "Sequence"});
    if (item.contains("Sequence")) {
      require_known_fields(item.at("Sequence"), "post_processor Sequence", {"id", "type_id"});
      MINFER_REQUIRE(Input, !behind && item.at("Sequence").at("id") == "A",
                     "post_processor: a template of one text has that text once");
      behind = true;
    } else if (behind) {
      template_id(step, item);
      note_end(spec);
    } else {
      set_bos(template_id(step, item), spec);
    }
  }
  MINFER_REQUIRE(Input, behind, "post_processor: a template without the text");
}

// ["<s>", 0]
int64_t id_of_pair(const json& pair) {
  MINFER_REQUIRE(Input, pair.is_array() && pair.size() == 2,
                 "post_processor: sep and cls are a "
                 "token and its id");
  return pair[1].get<int64_t>();
}

}  // namespace

void read_hf_post_processor(const json& post_processor, TokenizerSpec& spec) {
  for_each_component(
      post_processor, "post_processor", "processors",
      [&](const json& step, const std::string& type) {
        if (type == "ByteLevel") {  // it moves offsets only
          require_known_fields(step, "post_processor ByteLevel",
                               {"type", "add_prefix_space", "trim_offsets", "use_regex"});
        } else if (type == "TemplateProcessing") {
          read_template(step, spec);
        } else if (type == "BertProcessing" || type == "RobertaProcessing") {
          // trim_offsets and add_prefix_space are of offsets too.
          require_known_fields(step, "post_processor " + type,
                               {"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
          id_of_pair(step.at("sep"));
          set_bos(id_of_pair(step.at("cls")), spec);
          note_end(spec);
        } else {
          refuse("post_processor", type,
                 "BertProcessing, ByteLevel, RobertaProcessing, Sequence, TemplateProcessing");
        }
      });
}

}  // namespace minfer
