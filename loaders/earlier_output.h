#pragma once

#include <string>

namespace minfer {

enum class OutputKind { Directory, Safetensors, Gguf };

// Whether anything has this name, even a symbolic link that leads nowhere.
bool is_taken(const std::string& path);

// Says in words what an output of this kind would replace at `path` ("an earlier output, 6 files");
// empty if nothing is there. Throws System unless that is an output of the same kind: a model file
// of the same format, or a directory of minfer's that holds only files, and only those that its
// SHA256SUMS lists if it has one.
std::string earlier_output(const std::string& path, OutputKind kind);

// Throws Usage if writing `output` would touch `input`: if they are the same file or directory, or
// one is inside the other.
void require_apart(const std::string& input, const std::string& output);

}  // namespace minfer
