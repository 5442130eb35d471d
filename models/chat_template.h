#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace minfer {

// A piece of output that a Jinja template holds: text outside of tags, or a string in one.
struct TemplateLiteral {
  std::string text;    // escapes resolved
  std::string before;  // in a tag: its code up to here, without blanks
};

// In the order of the source. Templates are read for what they say, never run.
std::vector<TemplateLiteral> template_literals(std::string_view source);

// The system message that a ChatML template writes when the conversation has none; else empty.
std::string default_system_message(std::string_view source);

}  // namespace minfer
