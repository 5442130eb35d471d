#include "kernels/cuda/moe/moe.h"

namespace minfer::cuda {

void run_experts(cudaStream_t stream, const ExpertsArgs& args) {
  if (args.routing.n_rows == 0 || experts_by_wgmma(stream, args)) return;
  const ExpertMatrices up = matrices_of(args.weights, ExpertPart::Up);
  const auto run = [&](const ExpertCall& call) {
    if (!expert_gemm(stream, call)) expert_plain(stream, call);
  };
  run({.out = args.hidden,
       .x = args.x,
       .routing = args.routing,
       .w = matrices_of(args.weights, ExpertPart::Gate),
       .up = &up,
       .clamp = args.spec.swiglu_clamp()});
  run({.out = args.out,
       .x = args.hidden,
       .x_by_place = true,
       .routing = args.routing,
       .w = matrices_of(args.weights, ExpertPart::Down)});
}

}  // namespace minfer::cuda
