#include "tools/prompt_lines.h"

#include <charconv>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "loaders/strict_json.h"
#include "tools/json_lines.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

int64_t integer_of(const char* name, const Json& value, int64_t least, int64_t most) {
  MINFER_REQUIRE(Input, value.is_number_integer(), "\"", name, "\" is no whole number");
  const bool is_past = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX);
  const int64_t n = is_past ? -1 : value.get<int64_t>();
  MINFER_REQUIRE(Input, !is_past && n >= least && n <= most, "\"", name, "\" is not in ", least,
                 " ... ", most);
  return n;
}

float number_of(const char* name, const Json& value, const NumberRange& range) {
  MINFER_REQUIRE(Input, value.is_number(), "\"", name, "\" is no number");
  const double x = value.get<double>();
  MINFER_REQUIRE(Input, x >= range.least && x <= range.most, "\"", name, "\" is not in ",
                 range.least, " ... ", range.most);
  return static_cast<float>(x);
}

std::string text_of(const char* name, const Json& value) {
  MINFER_REQUIRE(Input, value.is_string(), "\"", name, "\" is no text");
  return value.get<std::string>();
}

std::vector<std::string> texts_of(const char* name, const Json& value) {
  if (!value.is_array()) return {text_of(name, value)};
  std::vector<std::string> texts;
  for (const Json& element : value) texts.push_back(text_of(name, element));
  return texts;
}

TokenId parse_id(std::string_view text, int64_t n_tokens) {
  TokenId id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  MINFER_REQUIRE(Input, is_whole && id >= 0 && id < n_tokens, "\"logit_bias\": ", shortened(text),
                 " is no token id below ", n_tokens);
  return id;
}

// One line of the file on its way to a request.
class LineParser {
 public:
  LineParser(PromptLine& line, const GenerateCommandOptions& options, const Model& model)
      : line_(line), options_(options), model_(model) {}

  void parse(std::string_view content) {
    parse_strict_json(content);  // for its limits; its objects do not keep the order of their keys
    const Json object = Json::parse(content);
    MINFER_REQUIRE(Input, object.is_object(), "no JSON object");
    if (const auto id = object.find("id"); id != object.end()) line_.id = id->dump();
    for (const auto& [name, value] : object.items()) take(name, value);
    MINFER_REQUIRE(Input, n_prompts_ == 1,
                   "expected one of \"prompt\", \"prompt_ids\" and \"messages\", found ",
                   n_prompts_);
  }

 private:
  void take(const std::string& name, const Json& value) {
    using Take = std::function<void(LineParser&, const char*, const Json&)>;
    static const std::map<std::string, Take> fields = {
        {"id", [](LineParser&, const char*, const Json&) {}},
        {"prompt", [](LineParser& p, const char* n, const Json& v) { p.text(text_of(n, v)); }},
        {"messages", [](LineParser& p, const char*, const Json& v) { p.messages(v.dump()); }},
        {"prompt_ids", [](LineParser& p, const char* n, const Json& v) { p.ids(n, v); }},
        {"n", [](LineParser& p, const char* n,
                 const Json& v) { p.generate().n_predict = integer_of(n, v, -1, kMaxTokens); }},
        {"seed", [](LineParser& p, const char* n,
                    const Json& v) { p.line_.seed = seed_of(integer_of(n, v, -1, INT64_MAX)); }},
        {"temp",
         [](LineParser& p, const char* n, const Json& v) {
           p.sampler().temperature = number_of(n, v, kTemperatureRange);
         }},
        {"temperature",
         [](LineParser& p, const char* n, const Json& v) {
           p.sampler().temperature = number_of(n, v, kTemperatureRange);
         }},
        {"top_k", [](LineParser& p, const char* n,
                     const Json& v) { p.sampler().top_k = integer_of(n, v, 0, INT32_MAX); }},
        {"top_p", [](LineParser& p, const char* n,
                     const Json& v) { p.sampler().top_p = number_of(n, v, kTopPRange); }},
        {"min_p", [](LineParser& p, const char* n,
                     const Json& v) { p.sampler().min_p = number_of(n, v, kMinPRange); }},
        {"repeat_penalty",
         [](LineParser& p, const char* n, const Json& v) {
           p.sampler().repeat_penalty = number_of(n, v, kRepeatPenaltyRange);
         }},
        {"repeat_last_n",
         [](LineParser& p, const char* n, const Json& v) {
           p.sampler().repeat_last_n = integer_of(n, v, -1, INT32_MAX);
         }},
        {"presence_penalty",
         [](LineParser& p, const char* n, const Json& v) {
           p.sampler().presence_penalty = number_of(n, v, kPenaltyRange);
         }},
        {"frequency_penalty",
         [](LineParser& p, const char* n, const Json& v) {
           p.sampler().frequency_penalty = number_of(n, v, kPenaltyRange);
         }},
        {"logit_bias", [](LineParser& p, const char* n, const Json& v) { p.logit_bias(n, v); }},
        {"stop", [](LineParser& p, const char* n, const Json& v) { p.stop(n, v); }},
        {"ignore_eos",
         [](LineParser& p, const char* n, const Json& v) {
           MINFER_REQUIRE(Input, v.is_boolean(), "\"", n, "\" is neither true nor false");
           p.generate().ignore_eos = v.get<bool>();
         }},
        {"logprobs", [](LineParser& p, const char* n, const Json& v) {
           p.generate().n_logprobs = integer_of(n, v, 0, kMostLogprobs);
         }}};
    const auto field = fields.find(name);
    MINFER_REQUIRE(Input, field != fields.end(), "no field is called ", shortened(name),
                   name == "max_tokens" ? "; \"n\" is how many tokens to generate" : "");
    field->second(*this, field->first.c_str(), value);
  }

  GenerateOptions& generate() { return line_.request.options; }
  SamplerOptions& sampler() { return generate().sampler; }

  void text(const std::string& text) {
    MINFER_REQUIRE(Input, options_.chat || !options_.has_chat_options(),
                   "a \"prompt\" takes --system, --chat-template and --template-var with --chat");
    line_.is_text = true;
    set(prompt_of_text(options_, tokenizer(), text));
  }
  void messages(const std::string& json) { set(prompt_of_messages(options_, tokenizer(), json)); }
  void ids(const char* name, const Json& value) {
    MINFER_REQUIRE(Input, value.is_array() && !value.empty(), "\"", name, "\" is no list of ids");
    ChatPrompt prompt;
    for (const Json& id : value) {
      prompt.tokens.push_back(narrow<TokenId>(integer_of(name, id, 0, model_.spec.vocab_size - 1)));
    }
    set(std::move(prompt));
  }
  void set(ChatPrompt prompt) {
    ++n_prompts_;
    line_.request.prompt = std::move(prompt.tokens);
    generate().end_ids = std::move(prompt.end_ids);
  }

  void logit_bias(const char* name, const Json& value) {
    MINFER_REQUIRE(Input, value.is_object(), "\"", name, "\" is no object of token ids");
    for (const auto& [id, bias] : value.items()) {
      sampler().logit_bias.emplace_back(parse_id(id, model_.spec.vocab_size),
                                        number_of(name, bias, {-1e30f, 1e30f}));
    }
  }
  void stop(const char* name, const Json& value) {
    generate().stop = texts_of(name, value);
    for (const std::string& stop : generate().stop) {
      MINFER_REQUIRE(Input, !stop.empty(), "\"stop\": an empty text would stop at once");
    }
  }

  const Tokenizer& tokenizer() const {
    MINFER_REQUIRE(Input, model_.tokenizer, "the model has no tokenizer: give it \"prompt_ids\"");
    return *model_.tokenizer;
  }

  PromptLine& line_;
  const GenerateCommandOptions& options_;
  const Model& model_;
  int n_prompts_ = 0;
};

}  // namespace

std::vector<PromptLine> parse_prompt_lines(std::string_view text,
                                           const GenerateCommandOptions& options,
                                           const GenerateOptions& defaults, const Model& model) {
  std::vector<PromptLine> lines;
  for_each_line(text, [&](int64_t number, std::string_view content) {
    PromptLine& line = lines.emplace_back();
    line.number = number;
    line.id = std::to_string(number);
    line.request.options = defaults;
    line.error = error_of_line(number, [&] {
      LineParser(line, options, model).parse(content);
      GenerateOptions& generate = line.request.options;
      if (generate.sampler.temperature == 0) {
        line.seed.reset();
      } else if (!line.seed) {
        line.seed = seed_of(options.seed);
      }
      generate.sampler.seed = line.seed.value_or(0);
      needed_positions(options, model.spec, std::ssize(line.request.prompt), generate.n_predict);
    });
  });
  return lines;
}

}  // namespace minfer
