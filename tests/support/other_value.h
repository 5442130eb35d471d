#pragma once

#include <string>
#include <type_traits>

#include "kernels/layer.h"

namespace minfer::test {

// A value that differs from that of a field of a spec.
template <typename T>
T other_value(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return !value;
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(value == T{} ? 1 : 0);
  } else if constexpr (std::is_floating_point_v<T>) {
    return value + T{0.5};
  } else {
    return value == 0 ? T{1} : value - 1;
  }
}

// Calls visit(name, a spec with one field changed) for each field except the sizes.
template <typename Visitor>
void for_each_changed_spec(const LayerSpec& spec, Visitor visit) {
  LayerSpec changed = spec, plain = spec;
  for_each_field(changed, plain, [&](const std::string& name, auto& field, const auto& before) {
    if (name == "n_heads" || name == "n_kv_heads" || name == "head_dim" || name == "ffn_dim")
      return;
    field = other_value(before);
    if (name == "rope") changed.rope = -1;  // no other index has a table
    visit(name, changed);
    field = before;
  });
}

}  // namespace minfer::test
