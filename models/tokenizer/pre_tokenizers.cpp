#include <algorithm>

#include "kernels/base/error.h"
#include "models/tokenizer/split.h"

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
constexpr const char* kCjk = R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";
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
constexpr const char* kBloom =
    R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+)";
constexpr const char* kJais2 = CONTRACTIONS
    "|" IN_FRONT R"(\p{L}+|\p{N}{1,3}|)" MARKS "|" BREAKS
    R"(|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S))"
    R"(|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
constexpr const char* kBailing = R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}|)"
                                 R"( ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|)" SPACES;
constexpr const char* kSeedCoder =
    CONTRACTIONS "|" IN_FRONT R"(\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|)" BREAKS "|" SPACES;
constexpr const char* kExaoneMoe = CONTRACTIONS
    "|" IN_FRONT
    R"((?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|)" SPACES;
constexpr const char* kMiniCpm5 =
    CONTRACTIONS "|" IN_FRONT R"(\p{L}+|\p{N}+|)" MARKS "|" BREAKS "|" SPACES;
constexpr const char* kUfakzeka = IN_FRONT R"(\p{L}+|\p{N}|)" MARKS "|" BREAKS "|" SPACES;
// The letters with case of the alphabets that DeepSeek's first tokenizers list.
constexpr const char* kDeepSeekLetters =
    R"(\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-)"
    R"(\x{293}\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386})"
    R"(\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f})"
    R"(\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba})"
    R"(\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-)"
    R"(\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59})"
    R"(\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-)"
    R"(\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2})"
    R"(-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d})"
    R"(\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f})"
    R"(\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-)"
    R"(\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-)"
    R"(\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21})"
    R"(-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb})"
    R"(\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+)";
constexpr const char* kDeepSeekMarks =
    R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)";
constexpr const char* kDeepSeekCjk = R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)";
constexpr const char* kAsianScripts =
    R"([\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{8c48}-\x{faff}\x{3040}-\x{309f}\x{30a0}-)"
    R"(\x{30ff}\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}\x{e40}-\x{e7f}\x{e80}-\x{eff}\x{1780}-)"
    R"(\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100})"
    R"(-\x{11ff}]+)";
constexpr const char* kYoutuScripts =
    R"([\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018})"
    R"(\x{2019}\x{2014}\x{ff1a}\x{ff1b}\x{ff0c}\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+|[)"
    R"(\x{3105}-\x{312f}]+|[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";
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
      {" granite-embed-multi-97m ", {kGpt4o}, true},
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
