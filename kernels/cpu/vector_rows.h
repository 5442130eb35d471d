#pragma once

// Norms, elementwise operations and RoPE for one instruction set. Sums over a row run over sixteen
// lanes, in an order that depends only on the length of the row.

namespace minfer::cpu {
namespace {

// Calls f(i, n) for lanes [i, i + n) of [0, dim); n is kPanel except for the last.
template <typename F>
inline void for_lanes(int64_t dim, F&& f) {
  int64_t i = 0;
  for (; i + kPanel <= dim; i += kPanel) f(i, kPanel);
  if (i < dim) f(i, dim - i);
}

inline F32x16 load_lanes(const float* p, int64_t n, float fill = 0) {
  return n == kPanel ? load(p) : load_first(p, n, fill);
}

inline void store_lanes(float* p, int64_t n, F32x16 x) {
  n == kPanel ? store(p, x) : store_first(p, n, x);
}

void rms_norm(float* out, const float* x, const float* weight, int64_t n_rows, int64_t dim,
              float eps) {
  for (int64_t r = 0; r < n_rows; ++r, x += dim, out += dim) {
    F32x16 sums = splat(0);
    for_lanes(dim, [&](int64_t i, int64_t n) {
      const F32x16 xv = load_lanes(x + i, n);
      sums = fma(xv, xv, sums);
    });
    const F32x16 scale = splat(1.0f / sqrt(sum_lanes(sums) / float(dim) + eps));
    for_lanes(dim, [&](int64_t i, int64_t n) {
      store_lanes(out + i, n, load_lanes(x + i, n) * scale * load_lanes(weight + i, n));
    });
  }
}

template <Activation kActivation>
void layer_norm_rows(float* out, const float* x, const float* weight, const float* bias,
                     int64_t n_rows, int64_t dim, float eps) {
  for (int64_t r = 0; r < n_rows; ++r, x += dim, out += dim) {
    F32x16 sums = splat(0);
    for_lanes(dim, [&](int64_t i, int64_t n) { sums = sums + load_lanes(x + i, n); });
    const float mean_of_row = sum_lanes(sums) / float(dim);
    const F32x16 mean = splat(mean_of_row);
    sums = splat(0);
    for_lanes(dim, [&](int64_t i, int64_t n) {
      const F32x16 centered = load_lanes(x + i, n, mean_of_row) - mean;
      sums = fma(centered, centered, sums);
    });
    const F32x16 scale = splat(1.0f / sqrt(sum_lanes(sums) / float(dim) + eps));
    for_lanes(dim, [&](int64_t i, int64_t n) {
      const F32x16 normed = (load_lanes(x + i, n) - mean) * scale;
      const F32x16 shift = bias != nullptr ? load_lanes(bias + i, n) : splat(0);
      store_lanes(out + i, n,
                  activated<kActivation>(fma(normed, load_lanes(weight + i, n), shift)));
    });
  }
}

void layer_norm(float* out, const float* x, const float* weight, const float* bias, int64_t n_rows,
                int64_t dim, float eps, Activation activation) {
  with_activation(activation, [&]<Activation kActivation>() {
    layer_norm_rows<kActivation>(out, x, weight, bias, n_rows, dim, eps);
  });
}

void activate(float* out, const float* x, const float* bias, int64_t n_rows, int64_t dim,
              Activation activation) {
  with_activation(activation, [&]<Activation kActivation>() {
    for (int64_t r = 0; r < n_rows; ++r, x += dim, out += dim) {
      for_lanes(dim, [&](int64_t i, int64_t n) {
        F32x16 xv = load_lanes(x + i, n);
        if (bias != nullptr) xv = xv + load_lanes(bias + i, n);
        store_lanes(out + i, n, activated<kActivation>(xv));
      });
    }
  });
}

void glu(float* out, const float* gate, const float* up, int64_t n_elements,
         Activation activation) {
  with_activation(activation, [&]<Activation kActivation>() {
    for_lanes(n_elements, [&](int64_t i, int64_t n) {
      const F32x16 factor = activated<kActivation>(load_lanes(gate + i, n));
      store_lanes(out + i, n, factor * load_lanes(up + i, n));
    });
  });
}

void clamped_swiglu(float* out, const float* gate, const float* up, int64_t n_elements, float alpha,
                    float limit) {
  for_lanes(n_elements, [&](int64_t i, int64_t n) {
    const F32x16 g = min(splat(limit), load_lanes(gate + i, n));
    const F32x16 u = max(splat(-limit), min(splat(limit), load_lanes(up + i, n)));
    store_lanes(out + i, n, (u + splat(1)) * sigmoid_times(splat(-alpha) * g, g));
  });
}

void scale_and_cap(float* x, int64_t n_elements, float scale, float softcap) {
  for_lanes(n_elements, [&](int64_t i, int64_t n) {
    const F32x16 scaled = splat(scale) * load_lanes(x + i, n);
    store_lanes(x + i, n, softcap > 0 ? capped(scaled, softcap) : scaled);
  });
}

void add(float* out, const float* a, const float* b, int64_t n_elements) {
  for_lanes(n_elements, [&](int64_t i, int64_t n) {
    store_lanes(out + i, n, load_lanes(a + i, n) + load_lanes(b + i, n));
  });
}

void softmax(float* out, const float* x, int64_t n_rows, int64_t dim) {
  const float minus_infinity = -__builtin_inff();
  for (int64_t r = 0; r < n_rows; ++r, x += dim, out += dim) {
    F32x16 max_lanes = splat(minus_infinity);
    for_lanes(dim, [&](int64_t i, int64_t n) {
      max_lanes = max(max_lanes, load_lanes(x + i, n, minus_infinity));
    });
    const F32x16 row_max = splat(max_lane(max_lanes));
    F32x16 sums = splat(0);
    for_lanes(dim, [&](int64_t i, int64_t n) {
      const F32x16 p = exp(load_lanes(x + i, n, minus_infinity) - row_max);
      store_lanes(out + i, n, p);
      sums = sums + p;
    });
    const F32x16 total = splat(sum_lanes(sums));
    for_lanes(dim, [&](int64_t i, int64_t n) {
      store_lanes(out + i, n, load_lanes(out + i, n) / total);
    });
  }
}

void rope(float* x, const float* cos_sin, int64_t n_tokens, int64_t n_heads, int64_t head_dim,
          int64_t rotary_dim) {
  const int64_t half = rotary_dim / 2;
  for (int64_t t = 0; t < n_tokens; ++t, cos_sin += rotary_dim) {
    for_lanes(half, [&](int64_t i, int64_t n) {
      alignas(64) float angles[2 * kPanel];
      for_lanes(2 * n, [&](int64_t j, int64_t m) {
        store(angles + j, load_lanes(cos_sin + 2 * i + j, m));
      });
      F32x16 c, s;
      load_pairs(angles, c, s);
      for (int64_t head = 0; head < n_heads; ++head) {
        float* const a = x + (t * n_heads + head) * head_dim + i;
        float* const b = a + half;
        const F32x16 av = load_lanes(a, n), bv = load_lanes(b, n);
        store_lanes(a, n, av * c - bv * s);
        store_lanes(b, n, bv * c + av * s);
      }
    });
  }
}

uint32_t sum_words(const uint32_t* data, int64_t n) {
  U32x16 sums[8] = {};
  for (int64_t i = 0; i < n; i += 8 * kPanel) {
    for (int j = 0; j < 8; ++j) sums[j] = sums[j] + load_words(data + i + j * kPanel);
  }
  for (int j = 1; j < 8; ++j) sums[0] = sums[0] + sums[j];
  uint32_t words[kPanel], sum = 0;
  store_words(words, sums[0]);
  for (uint32_t word : words) sum += word;
  return sum;
}

double fma_rounds(float* result, int64_t n_rounds) {
  F32x16 x[kFmaChains];
  for (F32x16& v : x) v = splat(1e-3f);
  const F32x16 factor = splat(0.999f), term = splat(1e-3f);
  for (int64_t i = 0; i < n_rounds; ++i) {
    for (F32x16& v : x) v = fma(v, factor, term);
  }
  for (const F32x16& v : x) *result += sum_lanes(v);
  return 2.0 * kPanel * kFmaChains * double(n_rounds);
}

}  // namespace
}  // namespace minfer::cpu
