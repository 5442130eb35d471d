#pragma once

#include <string>
#include <vector>

namespace minfer {

// The files of a Hugging Face directory that are copied with its weights: tokenizer, chat template,
// generation settings, licence. A symbolic link counts only if it leads to a file of the directory
// itself or of the blobs of its Hugging Face cache ("../../blobs/<hash>"): a downloaded model must
// not be able to have the user's own files copied.
struct SideFiles {
  std::vector<std::string> names;
  std::vector<std::string> left_out;  // a line for each file that is not copied, with the reason
};
SideFiles side_files(const std::string& directory);

}  // namespace minfer
