#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/tensor.h"
#include "loaders/metadata.h"

namespace minfer {

// A part of a text. Tokens, except control tokens, may cross the ends of a part.
struct TextPart {
  std::string text;
  bool parse_special = false;  // strings of control tokens in it become those tokens
};

struct EncodeOptions {
  bool add_bos = true;         // one BOS in front where the model's tokenizer adds one, never two
  bool parse_special = false;  // strings of control tokens in the text become those tokens
};

// Text to token ids and back. Thread-safe after construction.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Takes any bytes: invalid UTF-8 keeps its bytes in a byte-level vocabulary and becomes U+FFFD in
  // a SentencePiece one. It takes O(n log n) and does not recurse.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const;
  // Once the flag is set, texts that are being encoded end by throwing Cancelled: hundreds of MB
  // take many seconds. For all tokenizers of the process; null: none.
  static void cancel_by(const std::atomic<bool>* flag);
  // Encodes the parts as one text.
  virtual std::vector<TokenId> encode(std::span<const TextPart> parts, bool add_bos) const = 0;
  // The bytes that an id adds to a text; they may be part of a character. Unless `special`, control
  // tokens add nothing and the unknown token adds U+FFFD.
  virtual std::string token_bytes(TokenId id, bool special = false) const = 0;
  // The piece as the vocabulary spells it ("▁the", "Ġthe", "<0x0A>"), for people.
  virtual std::string piece(TokenId id) const = 0;
  // Whether the tokenizer adds a space to the start of a text (SentencePiece's dummy prefix), which
  // decode() then drops.
  virtual bool strips_leading_space() const = 0;

  int64_t n_tokens() const { return n_tokens_; }  // vocabulary size
  bool adds_bos() const { return adds_bos_; }
  TokenId bos() const { return bos_; }  // -1: none
  TokenId eos() const { return eos_; }  // -1: none
  // Whether the id ends a generated text (end of text or end of turn).
  bool is_end(TokenId id) const;
  const std::vector<TokenId>& end_ids() const { return end_ids_; }
  // The id whose piece is exactly `text` (special or not), or -1.
  virtual TokenId find(std::string_view text) const = 0;
  const std::string& chat_template() const { return chat_template_; }  // Jinja source, or empty
  const std::string& kind() const { return kind_; }                    // "llama SPM", for people
  // Problems of the file that a user should know, one line each.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Explanations of how the tokenizer works, one line each, shown on request.
  const std::vector<std::string>& notes() const { return notes_; }

  std::string decode(std::span<const TokenId> ids, bool special = false) const;

  // The same tokenizer as the keys of a GGUF file, padded with unused pieces to vocab_size. Throws
  // Input if GGUF cannot express it.
  virtual Metadata to_gguf(int64_t vocab_size) const = 0;

 protected:
  static void throw_if_cancelled();

  int64_t n_tokens_ = 0;
  bool adds_bos_ = false;
  TokenId bos_ = -1, eos_ = -1;
  std::vector<TokenId> end_ids_;  // eos and the end-of-turn tokens
  std::string chat_template_, kind_;
  std::vector<std::string> warnings_, notes_;
};

// Turns a stream of ids into whole UTF-8 characters: an incomplete tail is held back, and what can
// no longer become a character comes out as U+FFFD.
class StreamDecoder {
 public:
  // With `at_start`, the dummy-prefix space of the first id is dropped: for ids from the start of a
  // text, not for the continuation of a prompt.
  StreamDecoder(const Tokenizer& tokenizer, bool at_start, bool special = false);
  std::string push(TokenId id);
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool at_start_, special_;
  std::string pending_;
};

// Loads from a directory (tokenizer.json before tokenizer.model), a safetensors file that carries
// one, a GGUF (vocabulary-only too) or a bare tokenizer file (tokenizer.model, tokenizer.json,
// llama2.c's tokenizer.bin), told apart by content. Throws Input; unknown pre-tokenizers and models
// are refused by name, with the list of what is supported.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);
// Whether a directory or a single safetensors file has a tokenizer.
bool has_tokenizer(const std::string& path);
// Makes the tokenizer of an opened GGUF from its metadata.
std::unique_ptr<Tokenizer> make_gguf_tokenizer(const Metadata& metadata);

}  // namespace minfer
