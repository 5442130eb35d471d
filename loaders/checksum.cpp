#include "loaders/checksum.h"

#include <openssl/evp.h>

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
  State() { MINFER_CHECK(context && EVP_DigestInit_ex(context, EVP_sha256(), nullptr), "SHA-256"); }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  EVP_MD_CTX* context = EVP_MD_CTX_new();
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(const void* data, size_t n_bytes) {
  MINFER_CHECK(EVP_DigestUpdate(state_->context, data, n_bytes), "SHA-256");
}

std::string Sha256::hex() {
  unsigned char digest[32];
  MINFER_CHECK(EVP_DigestFinal_ex(state_->context, digest, nullptr), "SHA-256");
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
