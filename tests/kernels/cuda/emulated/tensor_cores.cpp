#include <cstring>

#include "kernels/base/half.h"
#include "tests/kernels/cuda/emulated/cluster.h"

namespace minfer::emulated {
namespace {

float to_float(uint16_t bits, Half type) {
  return type == Half::F16 ? to_f32(std::bit_cast<f16>(bits)) : to_f32(std::bit_cast<bf16>(bits));
}
float half_of(uint32_t pair, int i, Half type) {
  return to_float(static_cast<uint16_t>(pair >> (16 * i)), type);
}

constexpr int kRows = 64, kMaxColumns = 256;

// The element of a tile at a byte of a row.
template <typename T>
T element_of(const Block& block, const Operand& operand, int row, int byte) {
  const auto address =
      static_cast<uint32_t>(operand.tile * 16) + static_cast<uint32_t>(row * 128 + byte);
  T element;
  std::memcpy(&element, block.shared + swizzled(address, 128), sizeof element);
  return element;
}

// Adds the sums of each row and column to d, or replaces d by them.
template <typename Sum>
void add_sums(const WarpgroupMma& mma, const Sum (&sums)[kRows][kMaxColumns]) {
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    const int warp = thread / kWarp, lane = thread % kWarp;
    for (int i = 0; i < mma.n_sums; ++i) {
      const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      Sum& sum = static_cast<Sum*>(mma.d[static_cast<size_t>(thread)])[i];
      sum = (mma.accumulate ? sum : 0) + sums[row][column];
    }
  }
}

// sums = a b, in the order of b's rows.
template <typename T, size_t kDepth>
void multiply(const T (&a)[kRows][kDepth], const T (&b)[kDepth][kMaxColumns], int n_columns,
              T (&sums)[kRows][kMaxColumns]) {
  for (int row = 0; row < kRows; ++row) {
    std::fill_n(sums[row], n_columns, T{});
    for (size_t k = 0; k < kDepth; ++k) {
      for (int column = 0; column < n_columns; ++column) {
        sums[row][column] += a[row][k] * b[k][column];
      }
    }
  }
}

void perform_of_codes(const Block& block, const WarpgroupMma& mma) {
  constexpr int kDepth = 32;
  static int a[kRows][kDepth], b[kDepth][kMaxColumns], sums[kRows][kMaxColumns];
  const int n_columns = mma.n_sums * 2;
  for (int k = 0; k < kDepth; ++k) {
    for (int row = 0; row < kRows; ++row) a[row][k] = element_of<int8_t>(block, mma.a, row, k);
    for (int column = 0; column < n_columns; ++column) {
      b[k][column] = element_of<int8_t>(block, mma.b, column, k);
    }
  }
  multiply(a, b, n_columns, sums);
  add_sums(mma, sums);
}

void perform(const Block& block, const WarpgroupMma& mma) {
  if (mma.type == Half::TwoCodes) return perform_of_codes(block, mma);
  constexpr int kDepth = 16;
  static float a[kRows][kDepth], b[kDepth][kMaxColumns], sums[kRows][kMaxColumns];
  const int n_columns = mma.n_sums * 2;
  const auto element = [&](const Operand& operand, int row, int byte) {
    return to_float(element_of<uint16_t>(block, operand, row, byte), mma.type);
  };
  const auto held = [&](int row, int k) {  // see ptx::mma_m16n8k16
    const int thread = row / 16 * kWarp + row % 8 * 4 + k % 8 / 2;
    const uint32_t* const registers = mma.a_registers[static_cast<size_t>(thread)];
    return half_of(registers[row / 8 % 2 + k / 8 * 2], k % 2, mma.type);
  };
  const int lead = mma.b.lead;
  for (int k = 0; k < kDepth; ++k) {
    for (int row = 0; row < kRows; ++row) {
      a[row][k] = mma.a.registers ? held(row, k) : element(mma.a, row, k * 2);
    }
    for (int column = 0; column < n_columns; ++column) {
      b[k][column] = lead == 0 ? element(mma.b, column, k * 2)
                               : element(mma.b, k, column / 64 * lead + column % 64 * 2);
    }
  }
  multiply(a, b, n_columns, sums);
  add_sums(mma, sums);
}

Warpgroup& own_warpgroup() {
  return own_block().warpgroups[static_cast<size_t>(self().index / kWarpgroup)];
}

}  // namespace

void store_matrices(void* row, const uint32_t* values, int n, bool transposed) {
  struct Lane {
    void* row;
    const uint32_t* values;
  } lane{row, values};
  at_once("store_matrices", lane, [&](const std::array<Lane*, kWarp>& lanes) {
    for (size_t i = 0; i < kWarp; ++i) {
      for (int pair = 0; pair < n * 2; ++pair) {
        const int matrix = pair / 2, half = pair % 2;
        const int from_row = static_cast<int>(i) / 4,
                  from_column = static_cast<int>(i) % 4 * 2 + half;
        const int to_row = transposed ? from_column : from_row;
        const int to_column = transposed ? from_row : from_column;
        const auto bits = static_cast<uint16_t>(lanes[i]->values[matrix] >> (16 * half));
        auto* const to =
            static_cast<uint8_t*>(lanes[static_cast<size_t>(matrix * 8 + to_row)]->row);
        std::memcpy(to + to_column * 2, &bits, sizeof bits);
      }
    }
  });
}
void load_matrices(const void* row, uint32_t* values, int n, bool transposed) {
  struct Lane {
    const void* row;
    uint32_t* values;
  } lane{row, values};
  at_once("load_matrices", lane, [&](const std::array<Lane*, kWarp>& lanes) {
    for (size_t i = 0; i < kWarp; ++i) {
      for (int matrix = 0; matrix < n; ++matrix) {
        for (size_t half = 0; half < 2; ++half) {
          const size_t of_four = i % 4 * 2 + half;
          const size_t from_row = transposed ? of_four : i / 4,
                       column = transposed ? i / 4 : of_four;
          const auto* const from =
              static_cast<const uint16_t*>(lanes[static_cast<size_t>(matrix) * 8 + from_row]->row);
          std::memcpy(reinterpret_cast<uint16_t*>(lanes[i]->values + matrix) + half, from + column,
                      2);
        }
      }
    }
  });
}

void require_whole_warp(unsigned lanes) { require(lanes == ~0u, "not all lanes of a warp"); }
uint32_t exchange(uint32_t value, int from_lane) {
  require(from_lane >= 0 && from_lane < kWarp, "a lane that no warp has");
  struct Lane {
    uint32_t value, got;
    int from_lane;
  } lane{value, 0, from_lane};
  at_once("exchange", lane, [&](const std::array<Lane*, kWarp>& lanes) {
    for (Lane* to : lanes) to->got = lanes[static_cast<size_t>(to->from_lane)]->value;
  });
  return lane.got;
}
unsigned ballot(bool condition) {
  struct Lane {
    bool condition;
    unsigned votes;
  } lane{condition, 0};
  at_once("ballot", lane, [&](const std::array<Lane*, kWarp>& lanes) {
    unsigned votes = 0;
    for (size_t i = 0; i < kWarp; ++i) votes |= unsigned{lanes[i]->condition} << i;
    for (Lane* to : lanes) to->votes = votes;
  });
  return lane.votes;
}

void multiply_16x8x16(float* d, const uint32_t* a, const uint32_t* b, Half type) {
  struct Lane {
    float* d;
    const uint32_t *a, *b;
  } lane{d, a, b};
  at_once("multiply", lane, [&](const std::array<Lane*, kWarp>& lanes) {
    std::array<std::array<float, 16>, 16> rows;
    std::array<std::array<float, 16>, 8> columns;
    for (size_t k = 0; k < 16; ++k) {
      const size_t holder = k % 8 / 2;  // which of four lanes holds it, in a as in b
      const int half = static_cast<int>(k % 2);
      for (size_t row = 0; row < 16; ++row) {
        const uint32_t x = lanes[row % 8 * 4 + holder]->a[row / 8 + k / 8 * 2];
        rows[row][k] = half_of(x, half, type);
      }
      for (size_t column = 0; column < 8; ++column) {
        columns[column][k] = half_of(lanes[column * 4 + holder]->b[k / 8], half, type);
      }
    }
    for (size_t i = 0; i < kWarp; ++i) {
      for (size_t sum = 0; sum < 4; ++sum) {
        const size_t row = i / 4 + sum / 2 * 8, column = i % 4 * 2 + sum % 2;
        for (size_t k = 0; k < 16; ++k) lanes[i]->d[sum] += rows[row][k] * columns[column][k];
      }
    }
  });
}

void multiply_16x8x32(int* d, const uint32_t* a, const uint32_t* b, const int* c,
                      bool a_is_unsigned) {
  struct Lane {
    int* d;
    const uint32_t *a, *b;
    const int* c;
  } lane{d, a, b, c};
  at_once("multiply codes", lane, [&](const std::array<Lane*, kWarp>& lanes) {
    int rows[16][32], columns[8][32], sums[16][8] = {};
    for (size_t k = 0; k < 32; ++k) {
      const size_t holder = k % 16 / 4, shift = k % 4 * 8;
      for (size_t row = 0; row < 16; ++row) {
        const auto x =
            static_cast<uint8_t>(lanes[row % 8 * 4 + holder]->a[row / 8 + k / 16 * 2] >> shift);
        rows[row][k] = a_is_unsigned ? x : static_cast<int8_t>(x);
      }
      for (size_t column = 0; column < 8; ++column) {
        columns[column][k] = static_cast<int8_t>(lanes[column * 4 + holder]->b[k / 16] >> shift);
      }
    }
    for (size_t row = 0; row < 16; ++row) {
      for (size_t column = 0; column < 8; ++column) {
        for (size_t k = 0; k < 32; ++k) sums[row][column] += rows[row][k] * columns[column][k];
      }
    }
    for (size_t i = 0; i < kWarp; ++i) {
      for (size_t sum = 0; sum < 4; ++sum) {
        lanes[i]->d[sum] = lanes[i]->c[sum] + sums[i / 4 + sum / 2 * 8][i % 4 * 2 + sum % 2];
      }
    }
  });
}

void wgmma(void* d, int n_sums, const Operand& a, const Operand& b, bool accumulate, Half type) {
  Warpgroup& warpgroup = own_warpgroup();
  const size_t at = self().n_mmas++ - warpgroup.n_done;
  if (warpgroup.mmas.size() == at) warpgroup.mmas.emplace_back();
  WarpgroupMma& mma = warpgroup.mmas.at(at);
  if (mma.n_threads == 0) {
    mma.n_sums = n_sums;
    mma.a = a;
    mma.b = b;
    mma.accumulate = accumulate;
    mma.type = type;
  }
  require(mma.n_sums == n_sums && mma.a.tile == a.tile && mma.b == b &&
              mma.accumulate == accumulate && mma.type == type,
          "threads of a warpgroup ask for different mma instructions");
  const auto thread = static_cast<size_t>(self().index % kWarpgroup);
  mma.d[thread] = d;
  mma.a_registers[thread] = a.registers;
  ++mma.n_threads;
}
void wgmma_commit() { self().committed_mmas.push_back(self().n_mmas); }
void wgmma_wait(int pending) {
  size_t n_due = 0;
  auto& committed = self().committed_mmas;
  for (; std::ssize(committed) > pending; committed.pop_front()) n_due = committed.front();
  Warpgroup& warpgroup = own_warpgroup();
  if (warpgroup.n_due < n_due) {
    warpgroup.n_due = n_due;
    warpgroup.due_round = later_round();
  }
  const auto is_left = [&warpgroup, n_due] { return warpgroup.n_done < n_due; };
  wait_until([&warpgroup, n_due, is_left] {
    if (!is_left()) return true;
    if (g_cluster.round < warpgroup.due_round) return false;
    const size_t n = n_due - warpgroup.n_done;
    return warpgroup.mmas.size() >= n && warpgroup.mmas[n - 1].n_threads == kWarpgroup;
  });
  for (; is_left(); ++warpgroup.n_done) {
    perform(own_block(), warpgroup.mmas.front());
    warpgroup.mmas.pop_front();
  }
}

}  // namespace minfer::emulated
