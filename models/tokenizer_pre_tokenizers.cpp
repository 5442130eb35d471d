#include <algorithm>
#include <span>

#include "kernels/base/error.h"
#include "models/tokenizer_split.h"

// The names that llama.cpp writes to tokenizer.ggml.pre and the patterns of the tokenizer.json that
// each stands for. Where llama.cpp rewrites a pattern for std::regex, the one that the model was
// trained with counts.
namespace minfer {
namespace {

// The parts that patterns share.
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define MARKS R"( ?[^\s\p{L}\p{N}]+[\r\n]*)"
#define SPACES R"(\s+(?!\S)|\s+)"
#define BREAKS R"(\s*[\r\n]+)"
#define UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define IN_FRONT R"([^\r\n\p{L}\p{N}]?)"
#define PAIRED_CASE(upper, lower, end) \
  IN_FRONT upper "*" lower "+" end "|" IN_FRONT upper "+" lower "*" end
#define UPPER_NOT_HAN R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])"
#define LOWER_NOT_HAN R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])"
#define ASCII_MARK_WORD R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"
#define MARK_WORDS ASCII_MARK_WORD R"(|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+)"

constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kThreeDigits = R"(\p{N}{1,3})";
constexpr const char* kCjk = "[一-龥぀-ゟ゠-ヿ]+";
constexpr const char* kLlama3 =
    CONTRACTIONS "|" IN_FRONT R"(\p{L}+|\p{N}{1,3}|)" MARKS "|" BREAKS "|" SPACES;
constexpr const char* kQwen2 =
    CONTRACTIONS "|" IN_FRONT R"(\p{L}+|\p{N}|)" MARKS "|" BREAKS "|" SPACES;
constexpr const char* kQwen35 = CONTRACTIONS
    "|" IN_FRONT R"([\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" BREAKS "|" SPACES;
constexpr const char* kGpt4o = PAIRED_CASE(
    UPPER, LOWER, CONTRACTIONS "?") R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" BREAKS "|" SPACES;
constexpr const char* kTekken =
    PAIRED_CASE(UPPER, LOWER, "") R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" BREAKS "|" SPACES;
constexpr const char* kKimi = R"([\p{Han}]+|)" PAIRED_CASE(
    UPPER_NOT_HAN, LOWER_NOT_HAN, CONTRACTIONS "?") R"(|\p{N}{1,3}|)" MARKS "|" BREAKS "|" SPACES;
constexpr const char* kYoutu = PAIRED_CASE(
    UPPER, LOWER, CONTRACTIONS "?") R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" BREAKS "|" SPACES;
constexpr const char* kDeepSeekV3 = MARK_WORDS R"([\r\n]*|)" BREAKS "|" SPACES;
constexpr const char* kSpark = MARK_WORDS R"(|[\r\n]|)" SPACES;
constexpr const char* kBloom = " ?[^(\\s|.,!?…。，、।۔،)]+";
constexpr const char* kJais2 = CONTRACTIONS
    "|" IN_FRONT R"(\p{L}+|\p{N}{1,3}|)" MARKS "|" BREAKS
    R"(|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S))"
    R"(|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
constexpr const char* kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|)" SPACES;
constexpr const char* kSeedCoder =
    CONTRACTIONS "|" IN_FRONT R"(\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|)" BREAKS "|" SPACES;
constexpr const char* kExaoneMoe = CONTRACTIONS
    "|" IN_FRONT
    R"((?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|)" SPACES;
constexpr const char* kMiniCpm5 =
    CONTRACTIONS "|" IN_FRONT R"(\p{L}+|\p{N}+|)" MARKS "|" BREAKS "|" SPACES;
constexpr const char* kUfakzeka = IN_FRONT R"(\p{L}+|\p{N}|)" MARKS "|" BREAKS "|" SPACES;
constexpr const char* kGraniteMultilingual = PAIRED_CASE(
    UPPER, LOWER, CONTRACTIONS "?") R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" BREAKS "|" SPACES;
// The letters with case of the alphabets that DeepSeek's first tokenizers list.
constexpr const char* kDeepSeekLetters =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-"
    "ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    "ὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-"
    "ꞎꭰ-ꮿ"
    "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
constexpr const char* kDeepSeekMarks = "\\s?[!-/:-~！-／：-～‘-‟　-。]+";
constexpr const char* kDeepSeekCjk = "[一-龥ࠀ-一가-퟿]+";
constexpr const char* kAsianScripts =
    "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]"
    "+";
constexpr const char* kYoutuScripts =
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]"
    "+";
// Numbers in groups of three from their end.
constexpr const char* kGroupedDigits = R"((?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})*(?!\p{N}))|\p{N}{3})";

struct Known {
  std::string_view names;  // with blanks around each; the first is the one that is written
  std::vector<const char*> patterns;
  bool ignore_merges = false, adds_bos = false;
};

const std::vector<Known>& known() {
  static const std::vector<Known> kKnown = {
      {" gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert"
       " jina-v1-en jina-v2-code roberta-bpe exaone4 mpt olmo jais trillion granite-docling ",
       {kGpt2Pattern}},
      {" smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 ",
       {kDigit, kGpt2Pattern}},
      {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
       {kLlama3},
       true,
       true},
      {" smaug-bpe dbrx chatglm-bpe ", {kLlama3}},
      {" glm4 glm5 ", {kLlama3}, true},
      {" qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2 ",
       {kQwen2}},
      {" qwen35 ", {kQwen35}},
      {" tekken ", {kTekken}, true, true},
      {" gpt-4o llama4 kanana2 talkie minimax-m2 ", {kGpt4o}},
      {" deepseek-llm ",
       {"[\r\n]", kDeepSeekLetters, kDeepSeekMarks, "\\s+$", kDeepSeekCjk, "\\p{N}+"}},
      {" deepseek-coder ", {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", kDeepSeekCjk, kDigit}},
      {" deepseek-v3 hunyuan-dense joyai-llm hy_v4 ", {kThreeDigits, kCjk, kDeepSeekV3}},
      {" spark2_5 ", {kThreeDigits, kCjk, kSpark, kDigit}},
      {" youtu ", {kYoutuScripts, kYoutu}, true},
      {" falcon ", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", kGpt2Pattern, "[0-9][0-9][0-9]"}},
      {" default ", {"[\\p{P}\\$\\+<=>\\^~\\|]+", kGpt2Pattern, "\\p{N}+", "[0-9][0-9][0-9]"}},
      {" bloom poro-chat gpt3-finnish ", {kBloom}},
      {" viking ", {kBloom, kDigit}},
      {" chameleon ",
       {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", kDigit,
        "[\\p{P}!-/:-@\\[-`{-~]", kGpt2Pattern},
       false,
       true},
      {" superbpe ", {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}},
      {" kimi-k2 ", {kKimi}},
      {" bailingmoe bailingmoe2 llada-moe ", {kBailing}},
      {" seed-coder ", {kSeedCoder}},
      {" exaone-moe ", {kExaoneMoe}},
      {" jais-2 ", {kJais2}},
      {" afmoe ", {kGroupedDigits, kAsianScripts, kDeepSeekV3}},
      {" tiny_aya cohere2moe ", {"\\d{1,3}(?=(?:\\d{3})*\\b)", kGpt4o}},
      {" laguna ", {"[^\\n]+|[\\n]+", kQwen2}},
      {" minicpm5 ", {kThreeDigits, kMiniCpm5}, true},
      {" ufakzeka ", {kUfakzeka}},
      {" granite-embed-multi-97m ", {kGraniteMultilingual}, true},
  };
  return kKnown;
}

PreTokenizer made_of(const Known& entry) {
  PreTokenizer made;
  for (const char* pattern : entry.patterns) made.splitter.add_step(pattern);
  made.ignore_merges = entry.ignore_merges;
  made.adds_bos = entry.adds_bos;
  return made;
}

}  // namespace

PreTokenizer pre_tokenizer_by_name(const std::string& name) {
  const bool is_one_word = !name.empty() && name.find(' ') == name.npos;
  std::string supported;
  for (const Known& entry : known()) {
    if (is_one_word && entry.names.find(cat(" ", name, " ")) != entry.names.npos)
      return made_of(entry);
    supported += entry.names.substr(0, entry.names.size() - 1);
  }
  throw Error(ErrorKind::Input, cat("pre-tokenizer \"", shortened(name),
                                    "\" is not supported; supported are", supported));
}

std::string name_of_pre_tokenizer(const TextSplitter& splitter, bool ignore_merges) {
  for (const Known& entry : known()) {
    const PreTokenizer made = made_of(entry);
    if (made.splitter == splitter && made.ignore_merges == ignore_merges)
      return std::string(entry.names.substr(1, entry.names.find(' ', 1) - 1));
  }
  return {};
}

}  // namespace minfer
