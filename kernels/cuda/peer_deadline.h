#pragma once

namespace minfer::cuda {

// How long a card waits for another one: Deadline (deadline.cuh).
constexpr int kPeerDeadlineSeconds = 3;

}  // namespace minfer::cuda
