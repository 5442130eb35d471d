#include "loaders/checksum.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace minfer {
namespace {

template <typename Hash>
std::string hash_of(std::string_view text, size_t piece_bytes) {
  Hash hash;
  for (size_t at = 0; at < text.size(); at += piece_bytes) {
    const std::string_view piece = text.substr(at, piece_bytes);
    hash.update(piece.data(), piece.size());
  }
  return hash.hex();
}

TEST(Checksum, Sha256AsInFips180) {
  EXPECT_EQ(hash_of<Sha256>("", 1),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of<Sha256>("abc", 2),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string million(1'000'000, 'a');
  EXPECT_EQ(hash_of<Sha256>(million, 999),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Checksum, Xxh3AsInItsSpecification) {
  EXPECT_EQ(hash_of<Xxh3>("", 1), "2d06800538d394c2");
  const std::string bytes(100'000, 'x');
  EXPECT_EQ(hash_of<Xxh3>(bytes, 100'000), hash_of<Xxh3>(bytes, 77));
  EXPECT_NE(hash_of<Xxh3>(bytes, 77), hash_of<Xxh3>(bytes + 'x', 77));
}

}  // namespace
}  // namespace minfer
