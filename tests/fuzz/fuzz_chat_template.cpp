#include <string>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "models/chat/chat_template.h"
#include "tests/fuzz/chat_template_targets.h"
#include "tests/support/special_tokens_tokenizer.h"

namespace minfer::test {
namespace {

// A template renders to UTF-8 text, or is refused with one line.
void render(const std::string& source) {
  static const SpecialTokensTokenizer tokenizer("<s>", "</s>");
  static const std::string messages =
      R"([{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Grüße\n"},
          {"role": "assistant", "content": "世界 <s>", "tool_calls": [{"a": [1, 2.5, null]}]}])";
  static const ChatOptions options{.variables = {{"s", "\"Hello, World\""},
                                                 {"u", "\"\u3000Ünï ß 😀\""},
                                                 {"l", "[3, 1, 2]"},
                                                 {"d", R"({"b": 1, "a": ["x"]})"},
                                                 {"i", "7"},
                                                 {"f", "2.5"},
                                                 {"n", "null"}}};
  try {
    for (const TextPart& part : ChatTemplate(source).render(tokenizer, messages, options))
      MINFER_CHECK(is_utf8(part.text), "the text of a template is not UTF-8");
  } catch (const Error& e) {
    // A template may refuse a conversation in words of its own.
    if (e.kind() == ErrorKind::Usage) throw Error(ErrorKind::Input, e.what());
    throw;
  }
}

}  // namespace

// A template's steps and memory are bounded by constants, not by its length.
std::vector<FuzzTarget> fuzz_targets() {
  return {{.name = "ChatTemplate",
           .make = random_template,
           .run = render,
           .other_bytes = 64 << 20,
           .max_seconds = 20}};
}

}  // namespace minfer::test
