#pragma once

#include "models/tokenizer/bpe.h"

namespace minfer {

// Cuts each word into the pieces with the largest sum of scores: the Unigram model of a
// tokenizer.json. All else is as in BpeTokenizer.
class UnigramTokenizer : public BpeTokenizer {
 public:
  // `scores`: the score of each piece, by id. Throws Input if there is no unknown token or a piece
  // is longer than 512 bytes.
  UnigramTokenizer(TokenizerSpec spec, BpeOptions options, std::vector<double> scores);

  Metadata to_gguf(int64_t vocab_size) const override;

 protected:
  void encode_word(std::string_view word, std::vector<TokenId>& ids) const override;

 private:
  struct Node {  // the best path that ends at a byte
    double score = 0;
    size_t begin = 0;  // of its last piece
    TokenId id = -1;   // -1: no path
  };
  std::vector<Node> best_paths(std::string_view word) const;
  void append(std::string_view piece, std::vector<TokenId>& ids) const;

  std::vector<TokenId> sorted_;  // the ids of the model's pieces, sorted by text
  std::vector<double> scores_;
  double unknown_score_ = 0;
};

}  // namespace minfer
