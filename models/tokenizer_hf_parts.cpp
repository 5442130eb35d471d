#include "models/tokenizer_hf_parts.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace minfer {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const char* part, const std::string& what, const char* supported) {
  throw Error(ErrorKind::Input,
              cat(part, " \"", shortened(what), "\" is not supported; supported are ", supported));
}

// Calls take(component, type) for each component: one, a sequence of them, or none (null). The
// depth of the file is bounded, so this recursion is too.
void for_each_component(const json& component, const char* members,
                        const std::function<void(const json&, const std::string&)>& take) {
  if (component.is_null()) return;
  const auto type = component.at("type").get<std::string>();
  if (type != "Sequence") return take(component, type);
  for (const json& member : component.at(members)) for_each_component(member, members, take);
}

// {"String": s} or {"Regex": r}.
struct Pattern {
  std::string text;
  bool literal = false;
};

Pattern read_pattern(const json& pattern) {
  const bool literal = pattern.contains("String");
  return {pattern.at(literal ? "String" : "Regex").get<std::string>(), literal};
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

// Metaspace: blanks become ▁, one is put in front, and words begin at it. `scheme` is always, first
// or never; older files have a flag instead.
std::string metaspace_scheme(const json& metaspace) {
  if (metaspace.contains("prepend_scheme")) {
    const auto scheme = metaspace.at("prepend_scheme").get<std::string>();
    if (scheme != "always" && scheme != "first" && scheme != "never")
      refuse("prepend_scheme", scheme, "always, first, never");
    return scheme;
  }
  return metaspace.value("add_prefix_space", true) ? "always" : "never";
}

std::string metaspace_blank(const json& metaspace) {
  const auto blank = metaspace.value("replacement", std::string(kBlank));
  MINFER_REQUIRE(Input, blank == kBlank, "Metaspace replacement \"", shortened(blank),
                 "\", expected \"", kBlank, "\"");
  return blank;
}

}  // namespace

void read_hf_normalizer(const json& normalizer, BpeOptions& options) {
  for_each_component(normalizer, "normalizers", [&](const json& step, const std::string& type) {
    if (type == "Prepend") {
      options.normalizer.push_back(
          {NormalizeStep::Kind::Prepend, step.at("prepend").get<std::string>(), ""});
    } else if (type == "Replace") {
      const Pattern pattern = read_pattern(step.at("pattern"));
      if (!pattern.literal) refuse("normalizer", "Replace by regex", "Replace by string");
      options.normalizer.push_back(
          {NormalizeStep::Kind::Replace, pattern.text, step.at("content").get<std::string>()});
    } else if (type == "NFC") {
      options.normalizer.push_back({NormalizeStep::Kind::Nfc, "", ""});
    } else {
      refuse("normalizer", type, "NFC, Prepend, Replace, Sequence");
    }
  });
}

void read_hf_pre_tokenizer(const json& pre_tokenizer, BpeOptions& options) {
  size_t n_done = 0;
  for_each_component(
      pre_tokenizer, "pretokenizers", [&](const json& step, const std::string& type) {
        MINFER_REQUIRE(Input, !options.byte_level, "pre_tokenizer \"", shortened(type),
                       "\" behind ByteLevel is not supported");
        if (type == "Split") {
          const Pattern pattern = read_pattern(step.at("pattern"));
          options.splitter.add_step(pattern.text,
                                    read_behavior(step.at("behavior").get<std::string>()),
                                    step.value("invert", false), pattern.literal);
        } else if (type == "Digits") {
          options.splitter.add_step(step.value("individual_digits", false) ? R"(\p{N})"
                                                                           : R"(\p{N}+)");
        } else if (type == "ByteLevel") {
          options.byte_level = true;
          if (step.value("add_prefix_space", true)) {
            MINFER_REQUIRE(Input, n_done == 0,
                           "ByteLevel with add_prefix_space behind another "
                           "pre_tokenizer is not supported");
            options.normalizer.push_back({NormalizeStep::Kind::PrependOnce, " ", ""});
          }
          if (step.value("use_regex", true)) options.splitter.add_step(kGpt2Pattern);
        } else if (type == "Metaspace") {
          MINFER_REQUIRE(Input, n_done == 0,
                         "Metaspace behind another pre_tokenizer is not supported");
          const std::string blank = metaspace_blank(step), scheme = metaspace_scheme(step);
          options.normalizer.push_back({NormalizeStep::Kind::Replace, " ", blank});
          if (scheme != "never")
            options.normalizer.push_back(
                {NormalizeStep::Kind::PrependOnce, blank, "", scheme == "first"});
          if (step.value("split", true))
            options.splitter.add_step(blank, SplitBehavior::MergedWithNext, false, true);
        } else {
          refuse("pre_tokenizer", type, "ByteLevel, Digits, Metaspace, Sequence, Split");
        }
        ++n_done;
      });
}

void read_hf_decoder(const json& decoder, BpeOptions& options) {
  constexpr const char* kSupported =
      "ByteFallback, ByteLevel, Fuse, Metaspace, Replace of ▁ by a blank, Sequence, Strip of one "
      "blank in front";
  for_each_component(decoder, "decoders", [&](const json& step, const std::string& type) {
    if (type == "ByteLevel") {
      MINFER_REQUIRE(Input, options.byte_level, "decoder ByteLevel without such a pre_tokenizer");
    } else if (type == "Metaspace") {
      metaspace_blank(step);
      options.strips_leading_space = metaspace_scheme(step) != "never";
    } else if (type == "Replace") {
      if (step.at("pattern") != json{{"String", kBlank}} || step.at("content") != " ")
        refuse("decoder", "Replace", kSupported);
    } else if (type == "Strip") {
      const bool one_in_front =
          step.at("content") == " " && step.at("start") == 1 && step.at("stop") == 0;
      if (!one_in_front) refuse("decoder", "Strip", kSupported);
      options.strips_leading_space = true;
    } else if (type != "ByteFallback" && type != "Fuse") {
      refuse("decoder", type, kSupported);
    }
  });
}

void read_hf_post_processor(const json& post_processor, TokenizerSpec& spec) {
  for_each_component(post_processor, "processors", [&](const json& step, const std::string& type) {
    if (type == "ByteLevel") return;  // it moves offsets only
    if (type != "TemplateProcessing")
      refuse("post_processor", type, "ByteLevel, Sequence, TemplateProcessing");
    for (const json& item : step.at("single")) {
      if (item.contains("Sequence")) break;
      MINFER_REQUIRE(Input, !spec.adds_bos,
                     "post_processor: more than one token in front of the text is not supported");
      const auto name = item.at("SpecialToken").at("id").get<std::string>();
      const json& ids = step.at("special_tokens").at(name).at("ids");
      MINFER_REQUIRE(Input, ids.size() == 1, "post_processor: \"", shortened(name),
                     "\" stands for ", ids.size(), " ids, expected one");
      const auto id = ids[0].get<int64_t>();
      MINFER_REQUIRE(Input, id >= 0 && id < static_cast<int64_t>(spec.pieces.size()),
                     "post_processor: id ", id, ", the vocabulary has ", spec.pieces.size(),
                     " pieces");
      spec.bos = static_cast<TokenId>(id);
      spec.adds_bos = true;
    }
  });
}

}  // namespace minfer
