#pragma once

#include <cstdint>
#include <functional>

namespace minfer {

// f(piece) for piece = 0 ... n_pieces - 1 on up to n_threads threads that live as long as the call.
// Where pieces throw, the error of the first of them in order is thrown once all threads are done.
void parallel_for(int n_threads, int64_t n_pieces, const std::function<void(int64_t)>& f);

}  // namespace minfer
