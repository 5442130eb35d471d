#include "models/chat/chat_template.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"
#include "tests/support/special_tokens_tokenizer.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using nlohmann::json;
using test::expect_error;

std::string rendered(const std::string& source, const std::string& messages = "[]",
                     const std::vector<std::pair<std::string, std::string>>& variables = {}) {
  const test::SpecialTokensTokenizer tokenizer("<s>", "</s>");
  return test::joined(ChatTemplate(source).render(tokenizer, messages, {.variables = variables}));
}

class FixedNow {
 public:
  explicit FixedNow(const char* now) { ::setenv("MINFER_NOW", now, 1); }
  ~FixedNow() { ::unsetenv("MINFER_NOW"); }
};

// Published templates with the text that jinja2 makes of them.
TEST(ChatTemplate, PublishedTemplates) {
  const auto path = test::data_dir() / "chat-templates/templates.json";
  MINFER_NEEDS(path);
  const FixedNow now("2026-01-15T12:00:00");
  const json all = json::parse(test::read_file(path));
  int equal = 0, refused = 0, raised = 0;
  for (const json& t : all.at("templates")) {
    const test::SpecialTokensTokenizer tokenizer(t.at("bos_token"), t.at("eos_token"));
    for (const auto& [name, expected] : t.at("expected").items()) {
      const std::string messages = all.at("conversations").at(name).dump();
      try {
        const std::string text = test::joined(
            ChatTemplate(t.at("template").get<std::string>()).render(tokenizer, messages, {}));
        EXPECT_EQ(json(text), expected) << t.at("name") << ", " << name;
        ++equal;
      } catch (const Error& e) {
        ++(expected.is_string() ? refused : raised);
        const bool words = expected.is_object() &&
                           expected.at("error").get<std::string>().starts_with("TemplateError");
        EXPECT_EQ(e.kind(), words ? ErrorKind::Usage : ErrorKind::Input) << e.what();
        if (expected.is_string()) ADD_FAILURE() << t.at("name") << ", " << name << ": " << e.what();
      }
    }
  }
  EXPECT_EQ(equal, 1457);
  EXPECT_EQ(raised, 48);
  EXPECT_EQ(refused, 0);
}

// Small templates with what jinja2 makes of them: scripts/make_jinja_fixtures.py.
TEST(ChatTemplate, ConstructsAsJinjaHasThem) {
  // Python's dicts keep their order.
  using Json = nlohmann::ordered_json;
  const Json all = Json::parse(test::read_file(test::fixtures_dir() / "jinja.json"));
  const std::string messages = all.at("messages").dump();
  std::vector<std::pair<std::string, std::string>> variables;
  for (const auto& [name, value] : all.at("variables").items())
    variables.emplace_back(name, value.dump());
  EXPECT_GT(all.at("cases").size(), 500u);
  for (const Json& c : all.at("cases")) {
    const std::string source = c.at("template");
    if (c.contains("refused")) {
      expect_error(ErrorKind::Input, "not supported",
                   [&] { rendered(source, messages, variables); });
      continue;
    }
    try {
      const std::string text = rendered(source, messages, variables);
      EXPECT_TRUE(c.contains("text")) << source << "\ngives " << text << ", jinja2 raises "
                                      << c.value("error", "");
      EXPECT_EQ(text, c.value("text", "")) << source;
    } catch (const Error& e) {
      EXPECT_FALSE(c.contains("text")) << source << "\n" << e.what();
    }
  }
}

}  // namespace
}  // namespace minfer
