#pragma once

#include <string>

namespace minfer {

// ${XDG_CACHE_HOME:-~/.cache}/minfer, where scripts put models and data.
std::string cache_dir();
// Its folder for models.
std::string model_cache_dir();

// A script that comes with minfer, as it can be called: its path beside this program, installed or
// in the tree that it was built in; "scripts/NAME" where it is neither.
std::string script_path(const std::string& name);

// The model that -m names: a path, `smollm2` from the cache, or `demo`, the demonstration model
// that comes with minfer. Empty: the first of these two that is there. What is not simply the given
// path is said on stderr. Throws Usage where there is none.
std::string find_model(const std::string& given);

}  // namespace minfer
