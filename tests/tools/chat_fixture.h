#pragma once

#include "tests/tools/minfer_process.h"

namespace minfer::test {

// The template of Llama 2, in short: only BOS and EOS are tokens of their own in the tiny model.
inline constexpr const char* kTinyTemplate =
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ m['content'] + eos_token }}{% else %}"
    "{{ '[' + m['role'] + '] ' + m['content'] + '\\n' }}{% endif %}{% endfor %}";

// `minfer chat` on a tiny model with a template, whose answers are letters.
class MinferChat : public MinferProcess {
 protected:
  static constexpr int kFirstByte = 3;  // the id of byte 0

  std::vector<std::string> chat_args(std::vector<std::string> args) const {
    std::vector<std::string> all = {"chat", "-m", model_, "--temp", "0", "-t", "2", "--seed", "1"};
    for (const char letter : {'a', 'b', 'c', 'd', 'e'}) {
      all.push_back("--logit-bias=" + std::to_string(kFirstByte + letter) + "=100");
    }
    all.insert(all.end(), args.begin(), args.end());
    return all;
  }
  ProcessResult chat(const std::string& lines, const std::vector<std::string>& args = {"-n", "8"},
                     ProcessOptions options = {}) const {
    options.input = lines;
    return minfer(chat_args(args), options);
  }
  nlohmann::json saved(const std::string& name) const {
    return nlohmann::json::parse(read_file(dir_.path() / name));
  }
  std::string path(const std::string& name) const { return (dir_.path() / name).string(); }

  std::string model_ =
      dir_.write("chat.gguf", tiny_gguf({.context = 40000, .chat_template = kTinyTemplate}));
};

}  // namespace minfer::test
