#include <nlohmann/json.hpp>

#include "models/chat/value.h"

namespace minfer::jinja {
namespace {

using nlohmann::json;

constexpr size_t kMaxJsonNesting = 200;  // leaves room for what a template puts around it

bool is_plain_word(std::string_view text) {
  return !text.empty() && text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"
                                                 "XYZ0123456789_-") == text.npos;
}

// Builds values as the parser goes: no second copy, no recursion, keys in the order of the text.
class ValueReader : public nlohmann::json_sax<json> {
 public:
  ValueReader(Meter& meter, const std::string& name, bool own, bool own_roles)
      : meter_(meter), name_(name), own_(own), own_roles_(own_roles) {}

  Value take() { return std::move(whole_); }

  bool null() override { return add(Value::none()); }
  bool boolean(bool value) override { return add(Value::boolean(value)); }
  bool number_integer(int64_t value) override { return add(Value::integer(value)); }
  bool number_unsigned(uint64_t value) override {
    MINFER_REQUIRE(Input, value <= INT64_MAX, name_, ": integers past ", kMaxIntegerBits,
                   " bits are not supported");
    return add(Value::integer(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string& digits) override {
    MINFER_REQUIRE(Input, digits.find_first_of(".eE") != digits.npos, name_, ": integers past ",
                   kMaxIntegerBits, " bits are not supported");
    return add(Value::number(value));
  }
  bool string(std::string& value) override {
    const bool role = own_roles_ && open_.size() == 2 && open_.back().key == "role";
    const bool own = own_ || (role && is_plain_word(value));
    return add(Value::text(&meter_, Text(std::move(value), own)));
  }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }
  bool key(std::string& key) override {
    open_.back().key = key;
    return true;
  }
  bool end_object() override {
    DictBuilder dict(meter_);
    for (auto& [key, value] : open_.back().members)
      dict.set(Value::text(&meter_, Text(key, own_)), value);
    open_.pop_back();
    return add(dict.take());
  }
  bool end_array() override {
    Value list = make_list(meter_, std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(list));
  }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    throw Error(ErrorKind::Input, cat(name_, " is no JSON: a fault at byte ", position));
  }

 private:
  struct Open {
    bool object;
    std::string key;
    Values items;
    std::vector<std::pair<std::string, Value>> members;
  };

  bool open(bool object) {
    MINFER_REQUIRE(Input, open_.size() < kMaxJsonNesting, name_, " nests deeper than ",
                   kMaxJsonNesting, " levels");
    open_.push_back({object, {}, {}, {}});
    return true;
  }

  bool add(Value value) {
    meter_.step();
    if (open_.empty())
      whole_ = std::move(value);
    else if (open_.back().object)
      open_.back().members.emplace_back(open_.back().key, std::move(value));
    else
      open_.back().items.push_back(std::move(value));
    return true;
  }

  Meter& meter_;
  const std::string& name_;
  bool own_, own_roles_;
  std::vector<Open> open_;
  Value whole_;
};

}  // namespace

Value parse_json(Meter& meter, const std::string& name, std::string_view text, bool own,
                 bool own_roles) {
  ValueReader reader(meter, name, own, own_roles);
  json::sax_parse(text, &reader);
  return reader.take();
}

}  // namespace minfer::jinja
