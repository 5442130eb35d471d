#pragma once

#include <string>

namespace minfer {

// The Jinja source of chatml, llama2, llama3, zephyr or mistral, for models without a template.
// Throws Usage, with the list, for any other name.
const std::string& built_in_template(const std::string& name);

}  // namespace minfer
