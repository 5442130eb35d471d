#include "kernels/comm/nccl_comm.h"

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"

namespace minfer {
namespace cuda {
namespace {

// Of what all ranks have to do together on the host: to join and to leave.
constexpr std::chrono::seconds kNcclDeadline{60};

void require_nccl(ncclResult_t result, const char* what) {
  const auto kind = result == ncclRemoteError ? ErrorKind::Peer : ErrorKind::Gpu;
  if (result != ncclSuccess) {
    throw Error(kind, cat("NCCL: ", what, ": ", ncclGetErrorString(result)));
  }
}

ncclDataType_t type_of(DType dtype) {
  MINFER_CHECK(is_float(dtype), "all_reduce of ", dtype, " on a card");
  return dtype == DType::F32 ? ncclFloat32 : dtype == DType::F16 ? ncclFloat16 : ncclBfloat16;
}

CudaBackend& card_of(Backend& backend) {
  auto* const card = dynamic_cast<CudaBackend*>(&backend);
  MINFER_CHECK(card != nullptr, "a rank that is no card");
  return *card;
}

class NcclCommunicator final : public Communicator {
 public:
  // A communicator whose calls return at once: a rank that does not come blocks no other one.
  NcclCommunicator(CudaBackend& card, const ncclUniqueId& id, int rank, int n_ranks)
      : card_(card), rank_(rank), n_ranks_(n_ranks) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    MINFER_CUDA_CHECK(cudaSetDevice(card.card()));
    settle(ncclCommInitRankConfig(&comm_, n_ranks, id, rank, &config), "to join the other ranks");
  }
  // One that ncclCommInitAll has made.
  NcclCommunicator(CudaBackend& card, ncclComm_t comm, int rank, int n_ranks)
      : card_(card), comm_(comm), rank_(rank), n_ranks_(n_ranks) {}
  ~NcclCommunicator() override {
    if (comm_ != nullptr) ncclCommAbort(comm_);
  }

  int rank() const override { return rank_; }
  int n_ranks() const override { return n_ranks_; }

  void all_reduce(Tensor x) override {
    settle(ncclAllReduce(x.data, x.data, static_cast<size_t>(x.n_elements()), type_of(x.dtype),
                         ncclSum, comm_, card_.stream()),
           "all-reduce");
  }
  bool all_reduce_add(Tensor residual, Tensor part) override {
    if (part.dtype == DType::F32) return false;
    all_reduce(part);
    const int64_t n = part.n_elements();  // as a bias of one long row
    add_bias(card_.stream(), residual.reshaped({1, n}), residual.reshaped({1, n}),
             part.reshaped({n}));
    return true;
  }

  bool all_reduce_by(AllReduceKind kind, Tensor x, Tensor residual) override {
    if (kind != AllReduceKind::Library || residual) return false;
    all_reduce(x);
    return true;
  }

  // As a sum in which each element has one addend that is not 0: ranks have unequal parts, whose
  // sizes the others do not know, and NCCL's all-gather takes equal ones.
  void all_gather(Tensor out, Tensor part, int64_t begin) override {
    MINFER_CHECK(out.dtype == DType::F32 && part.dtype == DType::F32 &&
                     part.shape[0] == out.shape[0] && begin + part.shape[1] <= out.shape[1],
                 "all_gather of ", part.shape, " from column ", begin, " of ", out.shape);
    const auto row_bytes = static_cast<size_t>(bytes_of(DType::F32, out.shape[1]));
    const auto part_bytes = static_cast<size_t>(bytes_of(DType::F32, part.shape[1]));
    MINFER_CUDA_CHECK(
        cudaMemsetAsync(out.data, 0, static_cast<size_t>(out.n_bytes()), card_.stream()));
    MINFER_CUDA_CHECK(cudaMemcpy2DAsync(out.as<float>() + begin, row_bytes, part.data, part_bytes,
                                        part_bytes, static_cast<size_t>(out.shape[0]),
                                        cudaMemcpyDeviceToDevice, card_.stream()));
    all_reduce(out);
  }

  void check() const override {
    ncclResult_t state = ncclSuccess;
    require_nccl(ncclCommGetAsyncError(comm_, &state), "state");
    if (state != ncclInProgress) require_nccl(state, "an operation");
  }

 private:
  // Until the call has taken effect on the host; the card goes on by itself.
  void settle(ncclResult_t result, const char* what) {
    const auto end = std::chrono::steady_clock::now() + kNcclDeadline;
    while (result == ncclInProgress) {
      MINFER_REQUIRE(Peer, std::chrono::steady_clock::now() < end, "NCCL: ", what,
                     ": not all ranks have come within ", kNcclDeadline.count(), " s");
      std::this_thread::yield();
      require_nccl(ncclCommGetAsyncError(comm_, &result), "state");
    }
    require_nccl(result, what);
  }

  CudaBackend& card_;
  ncclComm_t comm_ = nullptr;
  const int rank_, n_ranks_;
};

class NcclLinks final : public RankLinks {
 public:
  explicit NcclLinks(std::span<Backend* const> backends) {
    std::vector<int> cards;
    for (Backend* backend : backends) cards.push_back(card_of(*backend).card());
    std::vector<ncclComm_t> comms(cards.size());
    const int n = static_cast<int>(cards.size());
    require_nccl(ncclCommInitAll(comms.data(), n, cards.data()), "to join the cards");
    for (int rank = 0; rank < n; ++rank) {
      CudaBackend& card = card_of(*backends[static_cast<size_t>(rank)]);
      cards_.push_back(card.card());
      communicators_.push_back(
          std::make_unique<NcclCommunicator>(card, comms[static_cast<size_t>(rank)], rank, n));
    }
  }

  int n_ranks() const override { return static_cast<int>(communicators_.size()); }
  Communicator& communicator(int rank) override {
    return *communicators_.at(static_cast<size_t>(rank));
  }
  void bind_thread(int rank) override {
    MINFER_CUDA_CHECK(cudaSetDevice(cards_.at(static_cast<size_t>(rank))));
  }
  void stop() override {}
  void reset() override {}

 private:
  std::vector<int> cards_;
  std::vector<std::unique_ptr<NcclCommunicator>> communicators_;
};

}  // namespace
}  // namespace cuda

bool has_nccl() { return true; }

std::string make_nccl_id() {
  ncclUniqueId id;
  cuda::require_nccl(ncclGetUniqueId(&id), "a name for the ranks");
  return {id.internal, sizeof id.internal};
}

std::unique_ptr<Communicator> make_nccl_communicator(Backend& backend, const std::string& id,
                                                     int rank, int n_ranks) {
  ncclUniqueId name;
  MINFER_CHECK(id.size() == sizeof name.internal, "a name of ", id.size(), " bytes");
  std::copy(id.begin(), id.end(), name.internal);
  return std::make_unique<cuda::NcclCommunicator>(cuda::card_of(backend), name, rank, n_ranks);
}

std::unique_ptr<RankLinks> make_nccl_links(std::span<Backend* const> backends) {
  return std::make_unique<cuda::NcclLinks>(backends);
}

}  // namespace minfer
