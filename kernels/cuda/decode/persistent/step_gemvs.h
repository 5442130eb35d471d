#pragma once

#include <array>
#include <optional>
#include <vector>

#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/decode_plan.h"

// The linear phases of a model, with their tiles dealt to the blocks of the persistent kernel.
namespace minfer::cuda {

// Short: stages of U5 have half as many pieces, as those of U6 always have: stage_pieces().
enum class StageLength { Whole, Short };
// What the linear phases are dealt to.
struct StepGrid {
  int n_blocks;
  StageLength stages;
  bool has_several_rows;  // in a stage of floats, where they are short
  int n_tokens;           // of a step
};

// The linear phases of a mix; and v, or k and v, where they are apart: else without tiles.
struct StepGemvs {
  std::array<StepGemv, kStepPhases> phases;
  StepGemv qkv_rest;
};

// The gemvs of each mix, and the mix of each layer. A block adds to the same rows of the residual
// stream in all layers.
struct StepMixes {
  std::vector<StepGemvs> mixes;
  std::vector<uint8_t> of_layer;
  StepWeights weights;
};

// Whether each block has a stage in every layer for each of its producers, which experts need:
// StepExperts::arrivals.
bool gives_stages_to_all_producers(const StepMixes& mixed);
// Null if there are too many mixes, or the kernel has no code or no room for a phase of one.
std::optional<StepMixes> mixes_of(const DecodeModel& model, const StepGrid& grid);

// The linear layers of a block in the order of StepLayer::matrices; with experts, gate, up and down
// are those of the first one.
std::array<const Linear*, 7> linears_of(const LayerWeights& w);

// Whether the registers of the consumer threads hold the input while they stage it.
inline bool can_stage(const StepGemv& p, bool has_norm) {
  return !are_codes(p.format) || p.in_dim <= most_code_columns(has_norm);
}

}  // namespace minfer::cuda
