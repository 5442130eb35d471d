#include "tools/inspection_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "loaders/quantized_dir.h"
#include "loaders/small_files.h"
#include "loaders/strict_json.h"
#include "models/chat/chat_template.h"
#include "models/tokenizer/tokenizer.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxFileBytes = 16 << 20;

// A JSON file beside the model; null where it is not there or not readable, which is the loader's
// to say.
nlohmann::json read_json(const SmallFiles& files, const std::string& name) {
  try {
    if (!files.has(name)) return nullptr;
    return parse_strict_json(files.read(name, kMaxFileBytes));
  } catch (const Error&) {
    return nullptr;
  }
}

bool names_id(const nlohmann::json& value, int64_t id) {
  if (value.is_array()) {
    return std::ranges::any_of(value, [&](const auto& item) { return item == id; });
  }
  return value.is_number_integer() && value == id;
}

// "bos_token": "<s>" or {"content": "<s>"}.
bool names_piece(const nlohmann::json& value, const std::string& piece) {
  if (value.is_object()) return value.contains("content") && value["content"] == piece;
  return value.is_string() && value == piece;
}

// The first file that names the id as `which` ("bos", "eos"), else the tokenizer's own.
std::string file_of_id(const TensorSource& source, const SmallFiles& files, const char* which,
                       int64_t id, const std::string& piece) {
  const std::string own = fs::path(source.path).filename();
  if (source.key_style != KeyStyle::HuggingFace) return own;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const nlohmann::json root = read_json(files, name);
    const std::string key = cat(which, "_token_id");
    if (root.is_object() && root.contains(key) && names_id(root[key], id)) return name;
  }
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const nlohmann::json root = read_json(files, name);
    const std::string key = cat(which, "_token");
    if (root.is_object() && root.contains(key) && names_piece(root[key], piece)) return name;
  }
  for (const char* name : {"tokenizer.json", "tokenizer.model", kTokenizerGguf}) {
    if (files.has(name)) return name;
  }
  return own;
}

std::string chat_template_text(const Tokenizer& tokenizer) {
  if (tokenizer.chat_template().empty()) return "no";
  try {
    const ChatTemplate parsed(tokenizer.chat_template());
    return "yes";
  } catch (const Error& e) {
    return cat("not supported: ", e.what());
  }
}

// "license: apache-2.0" between the two lines "---" at the head of a model card.
std::string licence_of_card(const std::string& card) {
  std::istringstream lines(card);
  std::string line;
  if (!std::getline(lines, line) || !line.starts_with("---")) return "";
  while (std::getline(lines, line) && !line.starts_with("---")) {
    constexpr std::string_view kKey = "license:";
    if (!line.starts_with(kKey)) continue;
    const size_t first = line.find_first_not_of(" '\"", kKey.size());
    const size_t last = line.find_last_not_of(" '\"\r");
    return first == std::string::npos ? "" : line.substr(first, last + 1 - first);
  }
  return "";
}

std::string licence_of(const TensorSource& source, const SmallFiles& files) {
  for (const char* key : {"general.license.name", "general.license", "license"}) {
    if (source.metadata.has(key)) return source.metadata.text(key);
  }
  try {
    if (files.has("README.md")) return licence_of_card(files.read("README.md", kMaxFileBytes));
  } catch (const Error&) {
    return "";
  }
  for (const char* name : {"LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE"}) {
    if (files.has(name)) return cat("see ", name);
  }
  return "";
}

std::string name_of(const TensorSource& source) {
  for (const char* key : {"general.name", "_name_or_path"}) {
    if (source.metadata.has(key) && !source.metadata.text(key).empty()) {
      return source.metadata.text(key);
    }
  }
  return "";
}

bool may_have_tokenizer(const TensorSource& source) {
  if (source.key_style == KeyStyle::Gguf) return source.metadata.has("tokenizer.ggml.model");
  return has_tokenizer(source.path);
}

Json id_json(const TokenizerInspection::Id& id) {
  return {{"id", id.id}, {"piece", id.piece}, {"file", id.file}};
}

std::string id_text(const TokenizerInspection::Id& id) {
  return fmt::format("{} {} ({})", id.id, shortened(id.piece), shortened(id.file));
}

}  // namespace

TokenizerInspection inspect_tokenizer(const TensorSource& source) {
  TokenizerInspection result;
  const SmallFiles files = small_files_of(source.path);
  try {
    result.name = name_of(source);
    result.licence = licence_of(source, files);
    if (!may_have_tokenizer(source)) return result;
    const std::unique_ptr<Tokenizer> tokenizer = source.key_style == KeyStyle::Gguf
                                                     ? make_gguf_tokenizer(source.metadata)
                                                     : load_tokenizer(source.path);
    result.kind = tokenizer->kind();
    result.n_tokens = tokenizer->n_tokens();
    const auto described = [&](const char* which, TokenId id) {
      const std::string piece = tokenizer->piece(id);
      return TokenizerInspection::Id{id, piece, file_of_id(source, files, which, id, piece)};
    };
    if (tokenizer->bos() >= 0) result.bos = described("bos", tokenizer->bos());
    for (const TokenId id : tokenizer->end_ids()) result.eos.push_back(described("eos", id));
    result.chat_template = chat_template_text(*tokenizer);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Input) throw;
    result.refusal = e.what();
  }
  return result;
}

std::string to_text(const TokenizerInspection& inspection) {
  std::string text;
  if (!inspection.name.empty())
    text += fmt::format("name           {}\n", shortened(inspection.name, 200));
  if (!inspection.licence.empty()) {
    text += fmt::format("licence        {}\n", shortened(inspection.licence, 200));
  }
  if (!inspection.refusal.empty()) {
    return text + fmt::format("tokenizer      not supported: {}\n", inspection.refusal);
  }
  if (inspection.kind.empty()) return text + "tokenizer      none\n";
  text += fmt::format("tokenizer      {}, {} tokens\n", inspection.kind, inspection.n_tokens);
  text += fmt::format("  bos          {}\n", inspection.bos ? id_text(*inspection.bos) : "none");
  std::string ends;
  for (const auto& id : inspection.eos) ends += (ends.empty() ? "" : ", ") + id_text(id);
  text += fmt::format("  eos          {}\n", ends.empty() ? "none" : ends);
  return text + fmt::format("chat template  {}\n", inspection.chat_template);
}

void add_json(Json& object, const TokenizerInspection& inspection) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  object["name"] = or_null(inspection.name);
  object["licence"] = or_null(inspection.licence);
  if (inspection.kind.empty()) {
    object["tokenizer"] = nullptr;
    object["tokenizer_unsupported"] = or_null(inspection.refusal);
    return;
  }
  Json eos = Json::array();
  for (const auto& id : inspection.eos) eos.push_back(id_json(id));
  object["tokenizer"] = {{"kind", inspection.kind},
                         {"n_tokens", inspection.n_tokens},
                         {"bos", inspection.bos ? id_json(*inspection.bos) : Json(nullptr)},
                         {"eos", eos},
                         {"chat_template", inspection.chat_template}};
  object["tokenizer_unsupported"] = nullptr;
}

}  // namespace minfer
