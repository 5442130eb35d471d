#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace minfer {

// SHA-256 of bytes that come piece by piece.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(const void* data, size_t n_bytes);
  std::string hex();  // 64 lower-case digits; no update() may follow

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::string_view bytes);

// XXH3, 64 bits, unseeded, of bytes that come piece by piece.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(Xxh3&&) noexcept;
  Xxh3& operator=(Xxh3&&) noexcept;

  void update(const void* data, size_t n_bytes);
  std::string hex() const;  // 16 lower-case digits, the most significant first

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace minfer
