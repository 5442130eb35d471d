"""The operations as Triton kernels, written plainly: what a day's work in Triton gives."""
import torch
import triton
import triton.language as tl


@triton.jit
def gelu_tanh(x):
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def gelu_erf(x):
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def elements_kernel(out, x, other, n, columns, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    a = tl.load(x + at, inside).to(tl.float32)
    if KIND == "gelu_erf":
        y = gelu_erf(a)
    elif KIND == "gelu_tanh":
        y = gelu_tanh(a)
    elif KIND == "silu":
        y = a * tl.sigmoid(a)
    elif KIND == "bias_gelu_erf":
        y = gelu_erf(a + tl.load(other + at % columns, inside).to(tl.float32))
    else:  # swiglu
        y = a * tl.sigmoid(a) * tl.load(other + at, inside).to(tl.float32)
    tl.store(out + at, y.to(out.dtype.element_ty), inside)


def elements(kind):
    def run(x, other=None):
        out = torch.empty_like(x)
        block = 4096
        elements_kernel[(triton.cdiv(x.numel(), block),)](out, x, x if other is None else other, x.numel(),
                                                          x.shape[-1], KIND=kind, BLOCK=block, num_warps=8)
        return out
    return run


@triton.jit
def rows_kernel(out, x, weight, bias, columns, eps, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """One row a program, held in registers."""
    first = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    a = tl.load(x + first + at, inside, other=-float("inf") if KIND == "softmax" else 0).to(tl.float32)
    if KIND == "softmax":
        e = tl.exp(a - tl.max(a, 0))
        y = e / tl.sum(e, 0)
    else:
        w = tl.load(weight + at, inside).to(tl.float32)
        if KIND == "rms_norm":
            y = a * tl.rsqrt(tl.sum(a * a, 0) / columns + eps) * w
        else:
            d = tl.where(inside, a - tl.sum(a, 0) / columns, 0)
            y = d * tl.rsqrt(tl.sum(d * d, 0) / columns + eps) * w + tl.load(bias + at, inside).to(tl.float32)
            if KIND == "layer_norm_gelu_erf":
                y = gelu_erf(y)
    tl.store(out + first + at, y.to(out.dtype.element_ty), inside)


def rows(kind):
    def run(x, weight=None, bias=None):
        out = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        rows_kernel[(x.shape[0],)](out, x, x if weight is None else weight, x if bias is None else bias, x.shape[1],
                                   1e-5, KIND=kind, BLOCK=block, num_warps=min(16, max(4, block // 1024)))
        return out
    return run


@triton.autotune([triton.Config({"BM": bm, "BN": bn, "BK": 64}, num_warps=warps, num_stages=stages)
                  for bm, bn, warps, stages in ((128, 256, 8, 3), (128, 128, 8, 4), (64, 128, 4, 4), (64, 256, 8, 4))],
                 key=["M", "N", "K"])
@triton.jit
def gemm_kernel(out, x, w, M, N, K, KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """out [M, N] = x [M, K] w [N, K] transposed; tiles in bands of 8 rows of tiles, so that they share L2."""
    n_m, n_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    band = tl.program_id(0) // (8 * n_n)
    rows_of_band = min(n_m - band * 8, 8)
    tile_m = band * 8 + tl.program_id(0) % (8 * n_n) % rows_of_band
    tile_n = tl.program_id(0) % (8 * n_n) // rows_of_band
    at_m = tile_m * BM + tl.arange(0, BM)
    at_n = tile_n * BN + tl.arange(0, BN)
    at_k = tl.arange(0, BK)
    xs = x + (at_m % M)[:, None].to(tl.int64) * K + at_k[None, :]
    ws = w + (at_n % N)[None, :].to(tl.int64) * K + at_k[:, None]
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        inside = at_k < K - k * BK
        sums = tl.dot(tl.load(xs, inside[None, :], other=0), tl.load(ws, inside[:, None], other=0), sums)
        xs += BK
        ws += BK
    if KIND == "gemm_gelu_erf":
        sums = gelu_erf(sums)
    tl.store(out + at_m[:, None].to(tl.int64) * N + at_n[None, :], sums.to(out.dtype.element_ty),
             (at_m < M)[:, None] & (at_n < N)[None, :])


def gemm(kind):
    def run(x, w):
        (m, k), n = x.shape, w.shape[0]
        out = x.new_empty(m, n)
        gemm_kernel[lambda c: (triton.cdiv(m, c["BM"]) * triton.cdiv(n, c["BN"]),)](out, x, w, m, n, k, KIND=kind)
        return out
    return run


@triton.jit
def attention_kernel(out, q, k, v, scale, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Causal attention of one head [T, D] a program of axis 1, in the manner of FlashAttention-2."""
    head = tl.program_id(1).to(tl.int64) * T * D
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM  # the longest first
    at_m, at_d = first + tl.arange(0, BM), tl.arange(0, D)
    queries = tl.load(q + head + at_m[:, None] * D + at_d[None, :], (at_m < T)[:, None], other=0)
    largest = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    sums = tl.zeros((BM, D), tl.float32)
    for begin in range(0, first + BM, BN):
        at_n = begin + tl.arange(0, BN)
        keys = tl.load(k + head + at_n[None, :] * D + at_d[:, None], (at_n < T)[None, :], other=0)
        scores = tl.dot(queries, keys) * (scale * 1.4426950408889634)
        if begin + BN > first:
            scores = tl.where(at_n[None, :] <= at_m[:, None], scores, -float("inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - new[:, None])
        change = tl.exp2(largest - new)
        total = total * change + tl.sum(weights, 1)
        values = tl.load(v + head + at_n[:, None] * D + at_d[None, :], (at_n < T)[:, None], other=0)
        sums = tl.dot(weights.to(values.dtype), values, sums * change[:, None])
        largest = new
    tl.store(out + head + at_m[:, None] * D + at_d[None, :], (sums / total[:, None]).to(out.dtype.element_ty),
             (at_m < T)[:, None])


def attention(q, k, v):
    """q, k, v [1, heads, tokens, head_dim]"""
    out = torch.empty_like(q)
    _, heads, tokens, head_dim = q.shape
    attention_kernel[(triton.cdiv(tokens, 128), heads)](out, q, k, v, head_dim**-0.5, tokens, D=head_dim, BM=128,
                                                        BN=64, num_warps=8, num_stages=3)
    return out
