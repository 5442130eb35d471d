#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace minfer {

// Clocks of one block of the persistent decode kernel in one phase, summed over all layers and
// steps. A part begins where the one before it ends.
struct PhaseClocks {
  double input = 0;     // until the whole input has come from all blocks and is staged
  double multiply = 0;  // multiplying, or attending
  double ring = 0;      // in `multiply`: waiting until weights, or the cache, come from memory
  double publish = 0;   // waiting for the other warps, adding their sums, publishing the rows
  double sum() const { return input + multiply + publish; }
};

struct PhaseProfile {
  std::string name;          // "q k v"
  int64_t n_per_step = 0;    // how often a step has it: once a layer, or once
  int64_t weight_bytes = 0;  // that all blocks together read each time
  std::vector<PhaseClocks> blocks;
};

// Where the time of decode steps goes, block by block: DecodePlan::start_profile.
struct StepProfile {
  int64_t n_steps = 0;
  std::vector<PhaseProfile> phases;  // in their order; what precedes the first layer comes first
  std::vector<double> seconds;       // of the kernel, by block, summed over all steps
};

}  // namespace minfer
