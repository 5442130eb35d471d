#include "models/tokenizer_hf_side_files.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loaders/strict_json.h"

namespace minfer {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxSideFileBytes = 16 << 20;
constexpr int64_t kMaxHoles = 4096;  // in the numbering, for tokens that a model left out

// Calls take(text) where the file is there, with its name in front of every error.
template <typename Take>
void with_file(const SmallFiles& files, const char* name, const Take& take) {
  if (!files.has(name)) return;
  const std::string text = files.read(name, kMaxSideFileBytes);
  try {
    take(text);
  } catch (const Error& e) {
    throw e.in(files.shown(name));
  } catch (const json::exception&) {  // a value of another type than the format says
    throw Error(ErrorKind::Input, cat(files.shown(name), ": a value has the wrong type"));
  }
}

// A token is its text, or an object that has it under "content"; null is no token.
std::string token_text(const json& value) {
  if (value.is_null()) return "";
  return (value.is_object() ? value.at("content") : value).get<std::string>();
}

TokenId find_piece(const TokenizerSpec& spec, const std::string& text) {
  // From the end, where added tokens are.
  const auto found = std::find_if(spec.pieces.rbegin(), spec.pieces.rend(),
                                  [&](const Piece& piece) { return piece.text == text; });
  return found == spec.pieces.rend() ? -1 : static_cast<TokenId>(spec.pieces.rend() - found - 1);
}

void take_token(const json& config, const char* key, const TokenizerSpec& spec, TokenId& id) {
  if (!config.contains(key)) return;
  const std::string text = token_text(config.at(key));
  id = text.empty() ? -1 : find_piece(spec, text);
}

void take_chat_template(const json& value, std::string& chat_template) {
  if (value.is_string()) chat_template = value.get<std::string>();
  if (!value.is_array()) return;
  for (const json& named : value)
    if (named.at("name") == "default") chat_template = named.at("template").get<std::string>();
}

int64_t id_of_key(const std::string& key) {
  int64_t id = -1;
  const auto [stop, fault] = std::from_chars(key.data(), key.data() + key.size(), id);
  MINFER_REQUIRE(Input, fault == std::errc() && stop == key.data() + key.size(),
                 "added_tokens_decoder: \"", shortened(key), "\" is not an id");
  return id;
}

void take_tokenizer_config(const json& config, TokenizerSpec& spec) {
  if (config.contains("added_tokens_decoder")) {
    std::vector<std::pair<int64_t, const json*>> tokens;
    for (const auto& [key, token] : config.at("added_tokens_decoder").items())
      tokens.emplace_back(id_of_key(key), &token);
    std::ranges::sort(tokens);
    for (const auto& [id, token] : tokens) {
      const bool special = token->value("special", false);
      set_added_piece(spec, id, token->at("content").get<std::string>(),
                      special ? PieceKind::Control : PieceKind::UserDefined);
    }
  }
  take_token(config, "bos_token", spec, spec.bos);
  take_token(config, "eos_token", spec, spec.eos);
  if (config.contains("add_bos_token") && !config.at("add_bos_token").is_null())
    spec.adds_bos = config.at("add_bos_token").get<bool>();
  if (config.contains("chat_template"))
    take_chat_template(config.at("chat_template"), spec.chat_template);
}

void take_generation_config(const json& config, TokenizerSpec& spec) {
  if (!config.contains("eos_token_id") || config.at("eos_token_id").is_null()) return;
  const json& ids = config.at("eos_token_id");
  const auto n_pieces = static_cast<int64_t>(spec.pieces.size());
  for (const json& value : ids.is_array() ? ids : json::array({ids})) {
    MINFER_REQUIRE(Input, value.is_number_integer(), "eos_token_id is not an integer");
    const auto id = value.get<int64_t>();
    MINFER_REQUIRE(Input, id >= 0 && id < n_pieces, "eos_token_id is ", id, ", the vocabulary has ",
                   n_pieces, " pieces");
    spec.end_ids.push_back(static_cast<TokenId>(id));
    if (spec.eos < 0) spec.eos = static_cast<TokenId>(id);
  }
}

}  // namespace

void set_added_piece(TokenizerSpec& spec, int64_t id, const std::string& text, PieceKind kind) {
  const auto n_pieces = static_cast<int64_t>(spec.pieces.size());
  MINFER_REQUIRE(Input, id >= 0 && id < n_pieces + kMaxHoles, "added token \"", shortened(text),
                 "\" has id ", id, ", the vocabulary has ", n_pieces, " pieces");
  if (id >= n_pieces) spec.pieces.resize(static_cast<size_t>(id) + 1, {"", PieceKind::Unused, 0});
  Piece& piece = spec.pieces[static_cast<size_t>(id)];
  MINFER_REQUIRE(Input, piece.text.empty() || piece.text == text, "added token \"", shortened(text),
                 "\" has id ", id, ", which is \"", shortened(piece.text), "\"");
  piece.text = text;
  if (piece.kind != PieceKind::Unknown && piece.kind != PieceKind::Byte) piece.kind = kind;
}

void apply_hf_side_files(const SmallFiles& files, TokenizerSpec& spec) {
  with_file(files, "added_tokens.json", [&](const std::string& text) {
    const json added = parse_strict_json(text);
    std::vector<std::pair<int64_t, std::string>> tokens;
    for (const auto& [token, id] : added.items()) tokens.emplace_back(id.get<int64_t>(), token);
    std::ranges::sort(tokens);
    for (const auto& [id, token] : tokens) {
      if (id >= static_cast<int64_t>(spec.pieces.size()))
        set_added_piece(spec, id, token, PieceKind::UserDefined);
    }
  });
  with_file(files, "special_tokens_map.json", [&](const std::string& text) {
    const json map = parse_strict_json(text);
    take_token(map, "bos_token", spec, spec.bos);
    take_token(map, "eos_token", spec, spec.eos);
  });
  with_file(files, "tokenizer_config.json",
            [&](const std::string& text) { take_tokenizer_config(parse_strict_json(text), spec); });
  with_file(files, "generation_config.json", [&](const std::string& text) {
    take_generation_config(parse_strict_json(text), spec);
  });
  with_file(files, "chat_template.jinja",
            [&](const std::string& text) { spec.chat_template = text; });
}

}  // namespace minfer
