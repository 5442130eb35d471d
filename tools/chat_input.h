#pragma once

#include <string>

#include "tools/line_reader.h"

namespace minfer {

// What a person enters at once: a message, or a command ("/save notes.json").
struct ChatInput {
  enum class Kind { Message, Command, EndOfInput, Interrupt };
  Kind kind = Kind::Message;
  std::string text;      // of the message, or the name of the command without its "/"
  std::string argument;  // of the command, without blanks around it
};

// Reads lines until something is entered; empty lines are nothing. A line that ends with a
// backslash goes on in the next one. A message or an argument that begins with three double quotes
// goes on to a line that ends with three, or to the end of the input.
ChatInput read_chat_input(LineReader& reader);

}  // namespace minfer
