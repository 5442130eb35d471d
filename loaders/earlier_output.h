#pragma once

#include <string>

namespace minfer {

enum class OutputKind { Directory, Safetensors, Gguf };

// Whether anything has this name: a link that leads nowhere takes it too.
bool is_taken(const std::string& path);

// What lies where an output of this kind is to be written and would be replaced, in words ("an
// earlier output, 6 files"); empty where nothing does. Throws System where that is not an earlier
// output of the same kind: a directory that minfer has written and that holds nothing else, a model
// file of the same format.
std::string earlier_output(const std::string& path, OutputKind kind);

// Throws Usage where writing `output` would touch `input`: the same file or directory, or one
// inside the other.
void require_apart(const std::string& input, const std::string& output);

}  // namespace minfer
