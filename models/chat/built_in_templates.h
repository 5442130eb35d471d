#pragma once

#include <string>

namespace minfer {

// The Jinja source of chatml, llama2, llama3, zephyr or mistral, for models that bring none.
// Throws Usage for another name, with the list.
const std::string& built_in_template(const std::string& name);

}  // namespace minfer
