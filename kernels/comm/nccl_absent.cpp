#include "kernels/comm/nccl_comm.h"

// In place of kernels/cuda/comm/nccl_comm.cpp in a build without NCCL.
namespace minfer {
namespace {

[[noreturn]] void refuse_nccl() {
  throw Error(ErrorKind::Usage,
              "this build has no NCCL (-DMINFER_CUDA=ON -DMINFER_NCCL=ON adds it)");
}

}  // namespace

bool has_nccl() { return false; }

std::string make_nccl_id() { refuse_nccl(); }

std::unique_ptr<Communicator> make_nccl_communicator(Backend&, const std::string&, int, int) {
  refuse_nccl();
}

std::unique_ptr<RankLinks> make_nccl_links(std::span<Backend* const>) { refuse_nccl(); }

}  // namespace minfer
