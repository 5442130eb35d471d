#include "loaders/checksum.h"

// The functions of one algorithm: those for any (EVP) take memory, and crash where there is none.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <cstdint>

// The library is its header: nothing to link.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kernels/base/error.h"

namespace minfer {
namespace {

std::string hex_of(const unsigned char* bytes, size_t n) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < n; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

}  // namespace

struct Sha256::State {
  SHA256_CTX context;
};

Sha256::Sha256() : state_(std::make_unique<State>()) { SHA256_Init(&state_->context); }
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(const void* data, size_t n_bytes) {
  SHA256_Update(&state_->context, data, n_bytes);
}

std::string Sha256::hex() {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256_Final(digest, &state_->context);
  return hex_of(digest, sizeof digest);
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

struct Xxh3::State {
  XXH3_state_t state;
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->state); }
Xxh3::~Xxh3() = default;
Xxh3::Xxh3(Xxh3&&) noexcept = default;
Xxh3& Xxh3::operator=(Xxh3&&) noexcept = default;

void Xxh3::update(const void* data, size_t n_bytes) {
  XXH3_64bits_update(&state_->state, data, n_bytes);
}

std::string Xxh3::hex() const {
  XXH64_canonical_t canonical;  // most significant byte first
  XXH64_canonicalFromHash(&canonical, XXH3_64bits_digest(&state_->state));
  return hex_of(canonical.digest, sizeof canonical.digest);
}

}  // namespace minfer
