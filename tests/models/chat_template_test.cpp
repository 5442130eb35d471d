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
      EXPECT_TRUE(c.contains("text"))
          << source << "\ngives " << text << ", jinja2 raises " << c.value("error", "");
      EXPECT_EQ(text, c.value("text", "")) << source;
    } catch (const Error& e) {
      EXPECT_FALSE(c.contains("text")) << source << "\n" << e.what();
    }
  }
}

std::string repeated(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

// What grows `ns.v`, which begins as `first`, by `step` `n` times, and then writes `use`.
std::string growing(const std::string& first, const std::string& step, int n,
                    const std::string& use = "") {
  return "{% set ns = namespace(v=" + first + ") %}{% for i in range(" + std::to_string(n) +
         ") %}{% set ns.v = " + step + " %}{% endfor %}" + use;
}

TEST(ChatTemplate, BoundsTimeMemoryAndDepth) {
  const std::string big = "{% set b = 'a' * 1000000 %}";
  const std::string doubled = growing("[1]", "[ns.v, ns.v]", 100);
  const std::pair<const char*, std::string> cases[] = {
      {"steps", "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"},
      {"steps", big + "{% for i in range(100000) %}{% set x = b | upper %}{% endfor %}"},
      {"steps", big + "{% for i in range(100000) %}{% set x = b == b + 'c' %}{% endfor %}"},
      {"steps", big + "{% for i in range(100000) %}{% set x = 'ab' in b %}{% endfor %}"},
      {"steps",
       doubled + "{% set x = ns.v %}" + growing("[1]", "[ns.v, ns.v]", 100, "{{ x == ns.v }}")},
      {"MB", "{{ 'a' * 1000000000 }}"},
      {"MB", "{{ [1] * 1000000000 }}"},
      {"MB", "{{ 'x' | center(10 ** 12) }}"},
      {"MB", "{{ 'x' | indent(10 ** 12) }}"},
      {"MB", big + "{{ b | replace('a', b) }}"},
      {"MB", big + "{{ b | replace('', b) }}"},
      {"MB", big + "{{ b.split('a') | join(b) }}"},
      {"MB", big + "{{ [b] * 100 }}"},
      {"MB", big + "{% for i in range(100) %}{{ b }}{% endfor %}"},
      {"MB", growing("'ab'", "ns.v + ns.v", 60)},
      {"MB", growing("'ab'", "ns.v ~ ns.v", 60)},
      {"MB", growing("[1]", "ns.v + ns.v", 60)},
      {"MB", growing("(1,)", "ns.v * 100", 60)},
      {"MB", growing("'a'", "'%s%s' % (ns.v, ns.v)", 60)},
      {"steps", doubled + "{{ ns.v }}"},
      {"steps", doubled + "{{ ns.v | tojson }}"},
      {"Range too big", "{% for i in range(10 ** 9) %}{% endfor %}"},
      {"bits", "{{ 2 ** 1000000000 }}"},
      {"bits", "{{ 9223372036854775807 + 1 }}"},
      {"deeper", growing("[]", "[ns.v]", 100000)},
      {"deeper", growing("{}", "{'a': ns.v}", 100000)},
      {"deeper", growing("[]", "ns.v | map('upper')", 100000, "{{ ns.v | list }}")},
      {"deeper", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"},
      {"deeper",
       "{% macro m() %}{{ caller is defined }}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}"},
      {"deeper", "{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}"},
      {"deeper", "{{ " + repeated("[", 100000) + repeated("]", 100000) + " }}"},
      {"deeper", "{{ " + repeated("-", 100000) + "1 }}"},
      {"deeper", "{{ " + repeated("not ", 100000) + "1 }}"},
      {"deeper", "{{ 1" + repeated(" + 1", 100000) + " }}"},
      {"deeper", "{{ x" + repeated(".a", 100000) + " }}"},
      {"deeper", "{{ x" + repeated("|list", 100000) + " }}"},
      {"deeper", "{{ x" + repeated(" if x else x", 50000) + " }}"},
      {"deeper", repeated("{% if 1 %}", 100000)},
      {"deeper", repeated("{% for x in [1] %}", 50000)},
      {"1 MB", repeated("a", 2000000)},
  };
  for (const auto& [reason, source] : cases) {
    SCOPED_TRACE(source.substr(0, 200));
    expect_error(ErrorKind::Input, reason, [&] { rendered(source); });
  }
}

TEST(ChatTemplate, HoldsItself) {
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns.a.a.a is defined }}"),
            "True");
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% for x in [1, 2] %}{{ loop.changed(loop) }}"
                     "{% set ns.l = loop %}{% endfor %}{{ ns.l.index }}"),
            "TrueFalse2");
  EXPECT_EQ(rendered("{% macro a(x) %}{% macro b() %}{{ x }}{% endmacro %}{% set ns.f = b %}"
                     "{% endmacro %}{% set ns = namespace() %}{{ a(5) }}{{ ns.f() }}"),
            "5");
}

TEST(ChatTemplate, TheLoopVariableBehindItsLoop) {
  const std::string kept =
      "{% set ns = namespace() %}{% for x in [1, 2] %}{% set ns.l = loop %}{% endfor %}";
  EXPECT_EQ(rendered(kept + "{{ ns.l.index }}{{ ns.l.length }}"), "22");
  for (const char* use : {"{{ ns.l.previtem }}", "{{ ns.l.last }}", "{{ ns.l.changed(ns.l) }}"})
    expect_error(ErrorKind::Input, "behind its loop", [&] { rendered(kept + use); });
}

TEST(ChatTemplate, SaysWhereAndWhat) {
  const std::pair<const char*, const char*> cases[] = {
      {"line 2: the filter \"urlize\" is not supported", "a\n{{ 'x' | urlize }}"},
      {"line 1: the tag \"include\" is not supported", "{% include 'x' %}"},
      {"line 3: 'str object' has no attribute 'y'", "{% set x = 'a' %}\n\n{{ x.y.z }}"},
      {"line 1: the attribute \"encode\" of a str is not supported", "{{ 'a'.encode() }}"},
      {"line 2: 'nope' is undefined", "\n{{ nope.x }}"},
      {"line 1: recursive loops", "{% for x in [] recursive %}{% endfor %}"},
      {"not UTF-8", "\xff"},
      {"line 1: access to attribute 'append' of 'list' object is unsafe", "{{ [].append(1) }}"},
  };
  for (const auto& [what, source] : cases)
    expect_error(ErrorKind::Input, what, [&] { rendered(source); });
  // In a branch that is not taken a filter may be unknown.
  EXPECT_EQ(rendered("{% if false %}{{ 'x' | from_json }}{% endif %}ok"), "ok");
}

TEST(ChatTemplate, VariablesAndTheClock) {
  EXPECT_EQ(rendered("{{ a.b[1] }}{{ c }}{{ tools }}", "[]",
                     {{"a", "{\"b\": [1, 2]}"}, {"c", "false"}, {"tools", "[]"}}),
            "2False[]");
  expect_error(ErrorKind::Input, "template variable a", [] { rendered("", "[]", {{"a", "{"}}); });
  {
    const FixedNow now("2024-02-29");
    EXPECT_EQ(rendered("{{ strftime_now('%d %b %Y, %A, %j %H:%M:%S %-d%%') }}"),
              "29 Feb 2024, Thursday, 060 00:00:00 29%");
    expect_error(ErrorKind::Input, "%f", [] { rendered("{{ strftime_now('%f') }}"); });
  }
  const FixedNow now("yesterday");
  expect_error(ErrorKind::Usage, "MINFER_NOW", [] { rendered("{{ strftime_now('%d') }}"); });
}

TEST(ChatTemplate, PartsKeepTheirOrigin) {
  const test::SpecialTokensTokenizer tokenizer("<s>", "</s>");
  const auto shown = [&](const std::string& source, const ChatOptions& options = {}) {
    std::string out;
    for (const TextPart& part : ChatTemplate(source).render(
             tokenizer, R"([{"role": "user", "content": "ab,c"}])", options))
      out += (part.parse_special ? "+" : "-") + part.text;
    return out;
  };
  const std::string start = "{% set c = messages[0].content %}";
  EXPECT_EQ(shown(start + "x{{ c }}y"), "+x-ab,c+y");
  EXPECT_EQ(shown(start + "{{ ('x' + c + 'y')[1:4] }}"), "-ab,");
  EXPECT_EQ(shown(start + "{{ ('xyz' ~ c)[2:4] }}"), "+z-a");
  EXPECT_EQ(shown(start + "{{ c.replace('b', '<s>') }}"), "-a+<s>-,c");
  EXPECT_EQ(shown(start + "{{ c.split(',') | join('|') }}"), "-ab+|-c");
  EXPECT_EQ(shown(start + "{{ (' ' + c + ' ') | trim | upper }}"), "-AB,C");
  EXPECT_EQ(shown(start + "{{ {'k': c} | tojson }}"), "+{\"k\": \"-ab,c+\"}");
  EXPECT_EQ(shown(start + "{{ [c] }}"), "+['-ab,c+']");
  EXPECT_EQ(shown(start + "{{ (c ~ 'x')[::-1] }}"), "+x-c,ba");
  EXPECT_EQ(shown(start + "{{ '%s!' % c }}"), "-ab,c+!");
  EXPECT_EQ(shown(start + "{{ c | indent(1, true) }}"), "+ -ab,c");
  EXPECT_EQ(
      shown(start + "{{ c | list | last }}{{ bos_token }}{{ v }}", {.variables = {{"v", "\"w\""}}}),
      "-c+<s>-w");
  EXPECT_EQ(shown(start + "x{{ c }}", {.variables = {}, .parse_special = true}), "+xab,c");
}

}  // namespace
}  // namespace minfer
