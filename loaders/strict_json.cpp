#include "loaders/strict_json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace minfer {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;

// Receives the parser's events and builds the document; false stops the parser. The containers that
// are open are on a stack of their own.
class StrictBuilder : public nlohmann::json_sax<json> {
 public:
  json take_root() { return std::move(root_); }
  const std::string& fault() const { return fault_; }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return fail("binary data"); }

  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (open_.back()->contains(name)) return fail(cat("key \"", shortened(name), "\" twice"));
    key_ = std::move(name);
    return true;
  }

  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& e) override {
    std::string_view reason = e.what();  // "[json.exception.parse_error.101] parse error at ..."
    reason.remove_prefix(std::min(reason.size(), reason.find("] ") + 2));
    return fail(cat("byte ", byte, ": ", shortened(reason, 200)));
  }

 private:
  bool fail(std::string fault) {
    fault_ = std::move(fault);
    return false;
  }

  json* place(json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }

  bool add(json value) {
    place(std::move(value));
    return true;
  }

  bool open(json container) {
    if (open_.size() == kMaxDepth) return fail(cat("more than ", kMaxDepth, " levels"));
    open_.push_back(place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*> open_;  // only the innermost one grows, so the pointers stay good
  std::string key_, fault_;
};

}  // namespace

json parse_strict_json(std::string_view text) {
  // The parser takes a NUL for the end of the text, and skips a byte order mark.
  const size_t nul = text.find('\0');
  MINFER_REQUIRE(Input, nul == text.npos, "malformed JSON: byte ", nul, " is NUL");
  MINFER_REQUIRE(Input, !text.starts_with("\xef\xbb\xbf"), "malformed JSON: a byte order mark");
  StrictBuilder builder;
  const bool whole = json::sax_parse(text.begin(), text.end(), &builder);
  MINFER_REQUIRE(Input, whole, "malformed JSON: ", builder.fault());
  return builder.take_root();
}

}  // namespace minfer
