#include "models/tokenizer/hf_side_files.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loaders/strict_json.h"
#include "models/tokenizer/hf_parts.h"

namespace minfer {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxSideFileBytes = 16 << 20;
constexpr std::initializer_list<const char*> kAddedTokenFields = {
    "content", "single_word", "lstrip", "rstrip", "normalized", "special", "__type"};
constexpr size_t kMaxEndIds = 1000;

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

// False: the file does not name it.
bool take_token(const json& config, const char* key, const PieceIndex& index, TokenId& id) {
  if (!config.contains(key)) return false;
  const std::string text = token_text(config.at(key));
  id = text.empty() ? -1 : index.find(text);
  return true;
}

void take_flag(const json& config, const char* key, bool& flag) {
  if (config.contains(key) && !config.at(key).is_null()) flag = config.at(key).get<bool>();
}

// The token that a post-processor puts in front stays, unless transformers would make the processor
// anew.
void take_bos(const json& config, const PieceIndex& index, TokenizerSpec& spec) {
  TokenId named = spec.bos;
  if (!take_token(config, "bos_token", index, named)) return;
  const bool has_template = !spec.finds_unlisted && spec.adds_bos;
  bool made_anew = false;
  take_flag(config, "add_bos_token", made_anew);
  if (!has_template || (made_anew && named >= 0)) spec.bos = named;
}

// transformers makes every token that these files name a control token, unless the tokenizer lists
// it itself.
void list_special(const json& value, PieceIndex& index, TokenizerSpec& spec) {
  if (value.is_null()) return;
  AddedToken token;
  if (value.is_object()) {
    require_known_fields(value, "special token", kAddedTokenFields);
    token = read_added_token(value);
  }
  token.text = token_text(value);
  token.id = index.find(token.text);
  token.special = true;
  if (token.id >= 0 && !index.listed().contains(token.id)) add_token(spec, index, std::move(token));
}

void list_named_specials(const json& config, PieceIndex& index, TokenizerSpec& spec) {
  for (const char* key :
       {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"})
    if (config.contains(key)) list_special(config.at(key), index, spec);
  if (!config.contains("additional_special_tokens")) return;
  const json& more = config.at("additional_special_tokens");
  MINFER_REQUIRE(Input, more.size() <= kMaxEndIds, "additional_special_tokens: ", more.size(),
                 " tokens, expected at most ", kMaxEndIds);
  for (const json& value : more.is_array() ? more : json::array()) list_special(value, index, spec);
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

void require_id(const TokenizerSpec& spec, int64_t id, const std::string& text, size_t n_more) {
  const auto n_pieces = static_cast<int64_t>(spec.pieces.size() + n_more);
  MINFER_REQUIRE(Input, id >= 0 && id < n_pieces + kMaxHoles, "added token \"", shortened(text),
                 "\" has id ", id, ", the vocabulary has ", spec.pieces.size(), " pieces");
}

// The flags of a tokenizer.json count more than those here.
void take_added_tokens(const json& listed, PieceIndex& index, TokenizerSpec& spec) {
  std::vector<std::pair<int64_t, const json*>> tokens;
  for (const auto& [key, token] : listed.items()) tokens.emplace_back(id_of_key(key), &token);
  std::ranges::sort(tokens);
  for (const auto& [id, json] : tokens) {
    require_known_fields(*json, "added_tokens_decoder", kAddedTokenFields);
    AddedToken token = read_added_token(*json);
    require_id(spec, id, token.text, tokens.size());
    token.id = static_cast<TokenId>(id);
    if (index.listed().contains(token.id))
      set_piece(spec, id, token.text, spec.pieces[static_cast<size_t>(id)].kind);
    else
      add_token(spec, index, std::move(token));
  }
}

void take_tokenizer_config(const json& config, PieceIndex& index, TokenizerSpec& spec) {
  if (config.contains("added_tokens_decoder"))
    take_added_tokens(config.at("added_tokens_decoder"), index, spec);
  take_bos(config, index, spec);
  take_token(config, "eos_token", index, spec.eos);
  list_named_specials(config, index, spec);
  take_flag(config, "add_bos_token", spec.adds_bos);
  take_flag(config, "legacy", spec.legacy);
  take_flag(config, "add_prefix_space", spec.add_prefix_space);
  bool adds_eos = false;
  take_flag(config, "add_eos_token", adds_eos);
  if (adds_eos && spec.notes.empty()) {
    spec.notes.push_back(
        "tokenizer_config.json has add_eos_token: a prompt goes on and does not "
        "get the end token behind it");
  }
  if (config.contains("chat_template"))
    take_chat_template(config.at("chat_template"), spec.chat_template);
}

// eos_token_id of generation_config.json or config.json: one id, or a list.
void take_end_ids(const std::string& shown, const json& config, TokenizerSpec& spec) {
  if (!config.contains("eos_token_id") || config.at("eos_token_id").is_null()) return;
  const json& value = config.at("eos_token_id");
  const json ids = value.is_array() ? value : json::array({value});
  MINFER_REQUIRE(Input, ids.size() <= kMaxEndIds, "eos_token_id: ", ids.size(),
                 " ids, expected at most ", kMaxEndIds);
  const auto n_pieces = static_cast<int64_t>(spec.pieces.size());
  for (const json& id : ids) {
    MINFER_REQUIRE(Input, id.is_number_integer(), "eos_token_id is not an integer");
    const auto number = id.get<int64_t>();
    if (number < 0 || number >= n_pieces) {
      spec.warnings.push_back(cat(shown, ": eos_token_id ", number, " is past the vocabulary of ",
                                  n_pieces, " pieces and is left out"));
      continue;
    }
    const auto token = static_cast<TokenId>(number);
    if (std::ranges::find(spec.end_ids, token) == spec.end_ids.end()) spec.end_ids.push_back(token);
    if (spec.eos < 0) spec.eos = token;
  }
}

// What is wrong with a config.json is for the model's loader to say.
void take_model_config(const SmallFiles& files, TokenizerSpec& spec) {
  constexpr const char* kName = "config.json";
  if (!files.has(kName)) return;
  try {
    std::vector<std::string> told;  // by the model's loader too
    const json config = parse_python_json(files.read(kName, kMaxSideFileBytes), kName, told);
    if (config.is_object()) take_end_ids(files.shown(kName), config, spec);
  } catch (const Error&) {
  } catch (const json::exception&) {
  }
}

// Tokens by text. Old transformers wrote this beside a tokenizer.model for what it does not have.
void take_added_json(const json& added, PieceIndex& index, TokenizerSpec& spec) {
  std::vector<std::pair<int64_t, std::string>> tokens;
  for (const auto& [token, id] : added.items()) tokens.emplace_back(id.get<int64_t>(), token);
  std::ranges::sort(tokens);
  for (const auto& [id, text] : tokens) {
    require_id(spec, id, text, tokens.size());
    if (index.find(text) < 0)
      add_token(spec, index, {.id = static_cast<TokenId>(id), .text = text});
  }
}

}  // namespace

PieceIndex::PieceIndex(const TokenizerSpec& spec) {
  ids_.reserve(spec.pieces.size());
  for (size_t id = 0; id < spec.pieces.size(); ++id)
    if (!spec.pieces[id].text.empty()) add(spec.pieces[id].text, static_cast<TokenId>(id));
}

TokenId PieceIndex::find(const std::string& text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? -1 : found->second;
}

void set_piece(TokenizerSpec& spec, int64_t id, const std::string& text, PieceKind kind) {
  if (id >= static_cast<int64_t>(spec.pieces.size()))
    spec.pieces.resize(static_cast<size_t>(id) + 1, {"", PieceKind::Unused, 0});
  Piece& piece = spec.pieces[static_cast<size_t>(id)];
  MINFER_REQUIRE(Input, piece.text.empty() || piece.text == text, "token \"", shortened(text),
                 "\" has id ", id, ", which is \"", shortened(piece.text), "\"");
  piece.text = text;
  if (piece.kind != PieceKind::Unknown && piece.kind != PieceKind::Byte) piece.kind = kind;
}

AddedToken read_added_token(const json& json) {
  const auto flag = [&](const char* name) { return json.value(name, false); };
  return {.text = json.at("content").get<std::string>(),
          .special = flag("special"),
          .single_word = flag("single_word"),
          .lstrip = flag("lstrip"),
          .rstrip = flag("rstrip"),
          .normalized = flag("normalized")};
}

void add_token(TokenizerSpec& spec, PieceIndex& index, AddedToken token) {
  if (token.text.empty()) return;
  set_piece(spec, token.id, token.text,
            token.special ? PieceKind::Control : PieceKind::UserDefined);
  index.add(token.text, token.id);
  const auto [listed, is_new] = index.listed().try_emplace(token.id, spec.added.size());
  if (is_new)
    spec.added.push_back(std::move(token));
  else
    spec.added[listed->second] = std::move(token);
}

void apply_hf_side_files(const SmallFiles& files, PieceIndex& index, TokenizerSpec& spec) {
  with_file(files, "added_tokens.json", [&](const std::string& text) {
    take_added_json(parse_python_json(text, "added_tokens.json", spec.warnings), index, spec);
  });
  with_file(files, "special_tokens_map.json", [&](const std::string& text) {
    const json map = parse_python_json(text, "special_tokens_map.json", spec.warnings);
    take_bos(map, index, spec);
    take_token(map, "eos_token", index, spec.eos);
    list_named_specials(map, index, spec);
  });
  with_file(files, "tokenizer_config.json", [&](const std::string& text) {
    take_tokenizer_config(parse_python_json(text, "tokenizer_config.json", spec.warnings), index,
                          spec);
  });
  with_file(files, "generation_config.json", [&](const std::string& text) {
    take_end_ids(files.shown("generation_config.json"),
                 parse_python_json(text, "generation_config.json", spec.warnings), spec);
  });
  take_model_config(files, spec);
  with_file(files, "chat_template.jinja",
            [&](const std::string& text) { spec.chat_template = text; });
}

}  // namespace minfer
