#pragma once

namespace minfer {

// Thrown out of long work once the flag given to Backend::cancel_by is set. No failure, and so no
// Error: the caller wanted the end. What was computed is of no use; a session is where it was
// before the chunk.
struct Cancelled {};

}  // namespace minfer
