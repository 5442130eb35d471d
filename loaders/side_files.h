#pragma once

#include <string>
#include <vector>

namespace minfer {

// The files of a Hugging Face directory that go with its weights: tokenizer, chat template,
// generation settings, licence. A link counts only where it leads to a file of the directory
// itself or of the blobs of its Hugging Face cache ("../../blobs/<hash>"): a model that was made by
// another must not get the user's own files into its copy.
struct SideFiles {
  std::vector<std::string> names;
  std::vector<std::string> left_out;  // a line for each that does not count
};
SideFiles side_files(const std::string& directory);

}  // namespace minfer
