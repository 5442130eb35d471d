#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/utf8.h"
#include "models/chat/chat_template.h"
#include "tests/support/special_tokens_tokenizer.h"

// libFuzzer's entry point: the bytes are a chat template. It renders to UTF-8 text, or is refused
// with one line; anything else ends the process.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace minfer;
  static const test::SpecialTokensTokenizer tokenizer("<s>", "</s>");
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
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  try {
    for (const TextPart& part :
         ChatTemplate(std::string(source)).render(tokenizer, messages, options)) {
      if (!is_utf8(part.text)) __builtin_trap();
    }
  } catch (const Error& e) {
    const bool one_line = std::string_view(e.what()).find('\n') == std::string_view::npos;
    const bool expected = e.kind() == ErrorKind::Input || e.kind() == ErrorKind::Usage;
    if (!expected || !one_line) throw;
  }
  return 0;
}
