#include "models/chat.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "models/chat_template.h"

namespace minfer {
namespace {

constexpr std::array<std::pair<const char*, ChatFamily>, 5> kFamilies = {
    {{"chatml", ChatFamily::ChatMl},
     {"llama2", ChatFamily::Llama2},
     {"llama3", ChatFamily::Llama3},
     {"zephyr", ChatFamily::Zephyr},
     {"mistral", ChatFamily::Mistral}}};
constexpr const char* kNames = "chatml, llama2, llama3, zephyr, mistral";

std::string trimmed_right(std::string text) {
  text.erase(text.find_last_not_of(" \t\n\r\f\v") + 1);
  return text;
}

std::string trimmed(std::string text) {
  text = trimmed_right(std::move(text));
  text.erase(0, std::min(text.size(), text.find_first_not_of(" \t\n\r\f\v")));
  return text;
}

// Text that the template writes, in which control tokens are meant, and text of the user's.
class Parts {
 public:
  explicit Parts(bool parse_special) : parse_special_(parse_special) {}
  Parts& own(std::string text) {
    parts_.push_back({std::move(text), true});
    return *this;
  }
  Parts& user(std::string text) {
    parts_.push_back({std::move(text), parse_special_});
    return *this;
  }
  const std::vector<TextPart>& all() const { return parts_; }

 private:
  bool parse_special_;
  std::vector<TextPart> parts_;
};

struct Turn {
  const Tokenizer& tokenizer;
  const std::string& source;  // of the model's template; may be empty
  const std::string& user;
  const std::optional<std::string>& system;

  bool has_system() const { return system && !system->empty(); }
};

void write_chatml(const Turn& turn, Parts& parts) {
  const std::string fallback = turn.system ? "" : default_system_message(turn.source);
  if (turn.has_system())
    parts.own("<|im_start|>system\n").user(*turn.system).own("<|im_end|>\n");
  else if (!fallback.empty())
    parts.own("<|im_start|>system\n" + fallback + "<|im_end|>\n");
  parts.own("<|im_start|>user\n").user(turn.user).own("<|im_end|>\n<|im_start|>assistant\n");
}

void write_llama2(const Turn& turn, Parts& parts) {
  parts.own("[INST] ");
  if (turn.has_system())
    parts.own("<<SYS>>\n").user(*turn.system).own("\n<</SYS>>\n\n").user(trimmed_right(turn.user));
  else
    parts.user(trimmed(turn.user));
  parts.own(" [/INST]");
}

// Llama 3.1 and later open with two dates, in a system message even where there is none else. The
// template's own date stands in for today's, so that a prompt is the same every day.
std::string llama3_preamble(const std::string& source) {
  constexpr std::string_view kMarker = "Cutting Knowledge Date: ";
  std::string knowledge, today;
  for (const TemplateLiteral& literal : template_literals(source)) {
    if (literal.text.starts_with(kMarker)) knowledge = literal.text;
    if (literal.before.ends_with("setdate_string=")) today = literal.text;
  }
  return knowledge.empty() ? "" : cat(knowledge, "Today Date: ", today, "\n\n");
}

void write_llama3(const Turn& turn, Parts& parts) {
  constexpr const char* kUserHeader = "<|start_header_id|>user<|end_header_id|>\n\n";
  const std::string preamble = llama3_preamble(turn.source);
  if (turn.has_system() || (!turn.system && !preamble.empty())) {
    parts.own("<|start_header_id|>system<|end_header_id|>\n\n" + preamble);
    if (turn.system) parts.user(trimmed(*turn.system));
    parts.own("<|eot_id|>");
  }
  parts.own(kUserHeader).user(trimmed(turn.user));
  parts.own("<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
}

void write_zephyr(const Turn& turn, Parts& parts) {
  const TokenId eos = turn.tokenizer.eos();
  const std::string end = (eos >= 0 ? turn.tokenizer.piece(eos) : "</s>") + "\n";
  if (turn.has_system()) parts.own("<|system|>\n").user(*turn.system).own(end);
  parts.own("<|user|>\n").user(turn.user).own(end + "<|assistant|>\n");
}

// The marker with the blanks that the template puts around it, which differ between versions.
std::string marker_in(const std::string& source, const std::string& marker, std::string fallback) {
  for (const auto& [text, before] : template_literals(source)) {
    const size_t at = text.find(marker);
    if (at == text.npos) continue;
    const bool blank_before = at > 0 && text[at - 1] == ' ';
    const bool blank_behind = text.substr(at + marker.size()).starts_with(' ');
    return cat(blank_before ? " " : "", marker, blank_behind ? " " : "");
  }
  return fallback;
}

void write_mistral(const Turn& turn, Parts& parts) {
  parts.own(marker_in(turn.source, "[INST]", "[INST] "));
  if (turn.has_system()) parts.user(*turn.system).own("\n\n");
  parts.user(turn.user).own(marker_in(turn.source, "[/INST]", " [/INST]"));
}

// Zephyr ends the user's turn by EOS; other templates with the same marker do not.
bool is_zephyr(std::string_view source) {
  const size_t user = source.find("<|user|>");
  if (user == source.npos) return false;
  const std::string_view turn = source.substr(user, source.find("{%", user) - user);
  return turn.find("eos_token") != turn.npos || turn.find("</s>") != turn.npos;
}

}  // namespace

ChatFamily chat_family_by_name(const std::string& name) {
  for (const auto& [known, family] : kFamilies)
    if (name == known) return family;
  throw Error(ErrorKind::Usage,
              cat("chat template \"", shortened(name), "\" is unknown; known are ", kNames));
}

ChatFamily recognize_chat_family(const std::string& chat_template) {
  const auto has = [&](const char* marker) {
    return chat_template.find(marker) != std::string::npos;
  };
  MINFER_REQUIRE(Input, !chat_template.empty(), "the model has no chat template; choose one of ",
                 kNames, " by --chat-template");
  if (has("<|im_start|>")) return ChatFamily::ChatMl;
  if (has("<|start_header_id|>")) return ChatFamily::Llama3;
  if (has("[INST]")) return has("<<SYS>>") ? ChatFamily::Llama2 : ChatFamily::Mistral;
  if (is_zephyr(chat_template)) return ChatFamily::Zephyr;
  throw Error(ErrorKind::Input,
              cat("the model's chat template is of no known family; choose one of ", kNames,
                  " by --chat-template"));
}

ChatPrompt make_chat_prompt(const Tokenizer& tokenizer, ChatFamily family, const std::string& user,
                            const std::optional<std::string>& system, bool parse_special) {
  const std::string& source = tokenizer.chat_template();
  const bool writes_bos = family == ChatFamily::Llama2 || family == ChatFamily::Llama3 ||
                          family == ChatFamily::Mistral ||
                          source.find("bos_token") != std::string::npos;
  Parts parts(parse_special);
  if (writes_bos && tokenizer.bos() >= 0) parts.own(tokenizer.piece(tokenizer.bos()));
  const Turn turn{tokenizer, source, user, system};
  switch (family) {
    case ChatFamily::ChatMl:
      write_chatml(turn, parts);
      break;
    case ChatFamily::Llama2:
      write_llama2(turn, parts);
      break;
    case ChatFamily::Llama3:
      write_llama3(turn, parts);
      break;
    case ChatFamily::Zephyr:
      write_zephyr(turn, parts);
      break;
    case ChatFamily::Mistral:
      write_mistral(turn, parts);
      break;
  }
  return {tokenizer.encode(parts.all(), true), tokenizer.end_ids()};
}

}  // namespace minfer
