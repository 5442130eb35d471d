#pragma once

#include <string>

#include "kernels/cpu/kernels.h"

namespace minfer::cpu {

// The kernels of "base", "avx2" or "avx512". If `isa` is empty: those of $MINFER_CPU_ISA, else the
// best that this machine has. Throws Usage if the name is unknown or the machine lacks the
// instructions.
const CpuKernels& choose_kernels(const std::string& isa);

}  // namespace minfer::cpu
