#include "kernels/base/dtype.h"

#include <ostream>

#include "kernels/base/math.h"
#include "kernels/base/quant_blocks.h"

namespace minfer {

const DTypeInfo& info(DType dtype) {
  static constexpr DTypeInfo kInfos[] = {
      {"F32", 1, 4},
      {"F16", 1, 2},
      {"BF16", 1, 2},
      {"Q8_0", BlockQ8_0::kElements, sizeof(BlockQ8_0)},
      {"Q4_0", BlockQ4_0::kElements, sizeof(BlockQ4_0)},
      {"Q4_1", BlockQ4_1::kElements, sizeof(BlockQ4_1)},
      {"Q5_0", BlockQ5_0::kElements, sizeof(BlockQ5_0)},
      {"Q5_1", BlockQ5_1::kElements, sizeof(BlockQ5_1)},
      {"Q2_K", BlockQ2_K::kElements, sizeof(BlockQ2_K)},
      {"Q3_K", BlockQ3_K::kElements, sizeof(BlockQ3_K)},
      {"Q4_K", BlockQ4_K::kElements, sizeof(BlockQ4_K)},
      {"Q5_K", BlockQ5_K::kElements, sizeof(BlockQ5_K)},
      {"Q6_K", BlockQ6_K::kElements, sizeof(BlockQ6_K)},
      {"IQ4_NL", BlockIQ4_NL::kElements, sizeof(BlockIQ4_NL)},
      {"IQ4_XS", BlockIQ4_XS::kElements, sizeof(BlockIQ4_XS)},
      {"MXFP4", BlockMXFP4::kElements, sizeof(BlockMXFP4)},
      {"U8", 1, 1},
      {"U4", 2, 1},
  };
  return kInfos[static_cast<size_t>(dtype)];
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << info(dtype).name; }

int64_t bytes_of(DType dtype, int64_t n) {
  const DTypeInfo& type = info(dtype);
  MINFER_REQUIRE(Input, n % type.block_elements == 0, "a row of ", n, " elements is not whole ",
                 type.name, " blocks of ", type.block_elements);
  return checked_mul(n / type.block_elements, type.block_bytes);
}

}  // namespace minfer
