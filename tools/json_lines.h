#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace minfer {

// f(number, content) for each line of a text that is not white space alone, numbered from 1.
void for_each_line(std::string_view text,
                   const std::function<void(int64_t number, std::string_view content)>& f);

// What is wrong with a line itself, "line 3: ...", where step() throws Input or Usage; empty where
// it does not. All else ends the run, with the line's number.
std::string error_of_line(int64_t number, const std::function<void()>& step);

}  // namespace minfer
