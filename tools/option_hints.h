#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace minfer {

// The name that `given` is most likely meant to be; empty where none is near.
std::string nearest(std::string_view given, const std::vector<std::string>& names);

// What llama.cpp and its bench call an option, and what it is here.
struct ForeignName {
  const char* name;     // "-ngl"
  const char* ours;     // an option that means the same, or null
  const char* instead;  // else what to do, as the end of a sentence "-ngl: ..."
};
// None where the name is not known there.
const ForeignName* foreign_name(std::string_view name);
// Those that mean the same as an option of these names.
std::vector<std::string> foreign_names_of(const std::vector<std::string>& ours);

// What a command that minfer does not have is called here: "eval perplexity" for "perplexity".
// Empty where that is not known.
std::string command_for(std::string_view name);

}  // namespace minfer
