#include "loaders/strict_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "loaders/json_reader.h"
#include "loaders/memory_budget.h"

namespace minfer {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxWarnings = 4, kMaxStreamedDepth = 4;
// What a value takes at the most with the allocator's share: its place in an array (which may have
// grown to twice its use, beside the one it was copied from) or in an object, a container or a
// string of its own.
constexpr size_t kElementBytes = 3 * sizeof(json), kMemberBytes = 128, kOwnBytes = 48;

// Builds the document. The containers that are open are on a stack of their own.
class Builder {
 public:
  // A null `warnings`: nothing that JSON does not have.
  Builder(std::string_view text, const StreamedJson& streamed, std::string_view name,
          std::vector<std::string>* warnings)
      : reader_(text),
        streamed_(streamed),
        name_(name),
        warnings_(warnings),
        budget_(text.size()) {}

  json build() {
    if (reader_.has_byte_order_mark()) depart(0, "a byte order mark in front", "skipped");
    value();
    while (!open_.empty()) {
      Level& level = open_.back();
      const bool is_object = level.container->is_object();
      if (reader_.take(is_object ? '}' : ']')) {
        close();
        continue;
      }
      if (std::exchange(level.has_values, true)) reader_.require(',');
      if (is_object) key(level);
      value();
    }
    reader_.require_end();
    if (n_departures_ > kMaxWarnings)
      warn(cat(n_departures_ - kMaxWarnings, " more of what JSON does not have"));
    return std::move(root_);
  }

 private:
  struct Level {
    json* container;       // only the innermost one grows, so the pointers stay good
    const TakeJson* take;  // of a streamed one; else null
    bool has_values = false;
    std::string key = {};  // the key of the value being read, in an object
  };

  // What Python takes and JSON does not have.
  void depart(size_t at, const std::string& what, const char* reading) {
    if (warnings_ == nullptr) reader_.fail_at(at, what);
    if (++n_departures_ <= kMaxWarnings) warn(cat(what, ": ", reading));
  }
  void warn(const std::string& line) { warnings_->push_back(cat(name_, ": ", line)); }

  void key(Level& level) {
    if (reader_.peek() != '"') reader_.fail("expected a key");
    const size_t at = reader_.position();
    level.key = reader_.string();
    reader_.require(':');
    if (level.take == nullptr && level.container->contains(level.key))
      depart(at, cat("key \"", shortened(level.key), "\" twice"), "the last one counts");
  }

  void value() {
    if (!open_.empty() && open_.back().take != nullptr) budget_outside_ = budget_;
    const char next = reader_.peek();
    if (next == '{' || next == '[') {
      reader_.require(next);
      open(next == '{' ? json::object() : json::array());
      return;
    }
    const size_t at = reader_.position();
    std::visit([&]<typename T>(T&& scalar) { add(to_json(std::forward<T>(scalar), at)); },
               reader_.scalar());
    deliver();
  }

  template <typename T>
  json to_json(T&& scalar, size_t at) {
    using Type = std::decay_t<T>;
    if constexpr (std::is_same_v<Type, NotFinite>) {
      const std::string word = std::isnan(scalar.value) ? "NaN"
                               : scalar.value > 0       ? "Infinity"
                                                        : "-Infinity";
      const std::string what = scalar.is_word ? cat(word, ", which JSON does not have")
                                              : std::string("a number past a double");
      depart(at, cat(shown_key(), what), scalar.is_word ? "read as Python does" : "infinite");
      return scalar.value;
    } else {
      if constexpr (std::is_same_v<Type, std::string>) {
        budget_.spend(kOwnBytes);
        budget_.spend_text(scalar.size());
      }
      return std::forward<T>(scalar);
    }
  }

  // Of the innermost object.
  std::string shown_key() const {
    for (size_t i = open_.size(); i-- > 0;) {
      if (open_[i].container->is_object()) return cat("key \"", shortened(open_[i].key), "\" has ");
    }
    return "";
  }

  // Puts the value in its place and says where that is.
  json* add(json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    const Level& level = open_.back();
    if (level.take != nullptr) return &(taken_ = std::move(value));
    json& parent = *level.container;
    if (parent.is_object()) {
      budget_.spend(kMemberBytes);
      budget_.spend_text(level.key.size());
      return &(parent[level.key] = std::move(value));
    }
    budget_.spend(kElementBytes);
    parent.push_back(std::move(value));
    return &parent.back();
  }

  void open(json container) {
    if (open_.size() == kMaxDepth) reader_.fail(cat("more than ", kMaxDepth, " levels"));
    budget_.spend(kOwnBytes);
    const TakeJson* const take = is_inside_streamed_ ? nullptr : find_streamed();
    json* const place = add(std::move(container));
    open_.push_back({place, take});
    if (take != nullptr) is_inside_streamed_ = true;
  }

  const TakeJson* find_streamed() const {
    if (open_.size() > kMaxStreamedDepth || streamed_.empty()) return nullptr;
    std::vector<std::string> path;
    for (const Level& level : open_) path.push_back(level.key);
    const auto found = streamed_.find(path);
    return found == streamed_.end() ? nullptr : &found->second;
  }

  void close() {
    if (open_.back().take != nullptr) is_inside_streamed_ = false;
    open_.pop_back();
    deliver();
  }

  // Hands over the value that has just been read, if it is in a streamed container.
  void deliver() {
    if (open_.empty() || open_.back().take == nullptr) return;
    (*open_.back().take)(std::move(open_.back().key), std::exchange(taken_, nullptr));
    budget_ = budget_outside_;
  }

  JsonReader reader_;
  const StreamedJson& streamed_;
  std::string_view name_;
  std::vector<std::string>* warnings_;
  size_t n_departures_ = 0;
  MemoryBudget budget_, budget_outside_ = budget_;  // the latter: without what is handed over
  json root_, taken_;                               // the latter: what is handed over next
  bool is_inside_streamed_ = false;
  std::vector<Level> open_;
};

}  // namespace

json parse_strict_json(std::string_view text, const StreamedJson& streamed) {
  return Builder(text, streamed, "", nullptr).build();
}

json parse_strict_json(std::string_view text) { return parse_strict_json(text, {}); }

json parse_python_json(std::string_view text, std::string_view name,
                       std::vector<std::string>& warnings, const StreamedJson& streamed) {
  return Builder(text, streamed, name, &warnings).build();
}

}  // namespace minfer
