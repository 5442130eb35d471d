#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace minfer {

// The small files of a Hugging Face model, by name: those of its directory, or those that a single
// safetensors file carries inside.
class SmallFiles {
 public:
  explicit SmallFiles(std::string directory) : path_(std::move(directory)) {}
  SmallFiles(std::string path, std::map<std::string, std::string> inside)
      : path_(std::move(path)), inside_(std::move(inside)) {}

  bool has(const std::string& name) const;
  // The file must be there. Throws as read_whole_file does.
  std::string read(const std::string& name, uint64_t max_bytes) const;
  std::string shown(const std::string& name) const;  // for messages

 private:
  std::string path_;
  std::optional<std::map<std::string, std::string>> inside_;
};

// The files that a single safetensors file may carry.
inline constexpr const char* kInsideFiles[] = {"config.json",
                                               "tokenizer.model",
                                               "tokenizer.json",
                                               "tokenizer_config.json",
                                               "special_tokens_map.json",
                                               "added_tokens.json",
                                               "generation_config.json",
                                               "chat_template.jinja"};

// The name of the U8 tensor that holds a file inside a single safetensors file: "minfer.config" for
// config.json, "minfer.tokenizer_model" for tokenizer.model.
std::string inside_tensor_name(const std::string& file_name);

// The small files of a directory or of a safetensors file. Any other file has none.
SmallFiles small_files_of(const std::string& path);

}  // namespace minfer
