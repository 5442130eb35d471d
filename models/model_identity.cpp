#include "models/model_identity.h"

#include "loaders/checksum.h"

namespace minfer {
namespace {

template <typename T>
std::string text_of(const T& value) {
  return cat(value);
}
template <typename T>
std::string text_of(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += cat(value, '\n');
  return text;
}

}  // namespace

std::string identity_of(const OpenedModel& opened) {
  Xxh3 checksum;
  const auto add = [&](const std::string& text) {
    const uint64_t n = text.size();  // in front, so that no two lists of texts read the same
    checksum.update(&n, sizeof n);
    checksum.update(text.data(), text.size());
  };
  uint64_t n_bytes = 0;
  for (const TensorEntry& entry : opened.source->tensors) {
    add(cat(entry.name, ' ', type_text(entry), ' ', entry.shape, ' ', entry.file_bytes));
    n_bytes += entry.file_bytes;
  }
  for (const auto& [key, value] : opened.source->metadata.all()) {
    add(key);
    std::visit([&](const auto& held) { add(text_of(held)); }, value);
  }
  if (const Tokenizer* const tokenizer = opened.model.tokenizer.get()) {
    for (int64_t id = 0; id < tokenizer->n_tokens(); ++id) {
      add(tokenizer->piece(static_cast<TokenId>(id)));
    }
    add(tokenizer->chat_template());
  }
  return cat(opened.source->tensors.size(), " tensors of ", n_bytes, " bytes, checksum ",
             checksum.hex());
}

}  // namespace minfer
