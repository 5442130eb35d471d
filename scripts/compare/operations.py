"""The operations that are compared: PyTorch's ways, references in float64, and bounds of the errors.

Every output is F16 of sums in F32, so an implementation is off by what rounding allows: U is half a unit in the last
place of F16. Chains that PyTorch runs one by one round what passes between their parts, too.
"""
import dataclasses
import math
import typing

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

U = 2.0**-11  # rounding to F16, relative
ACCUMULATE = 2.0**-23  # an addition of F32, also one that truncates, as tensor cores do
FUNCTION = 2.0**-12  # approximations of exp, erf, tanh and division, relative to their terms
TINY = 2.0**-24  # the spacing of F16 around zero
GELU_SLOPE = 1.13
EPS = 1e-5
WRONG = 1e9


@dataclasses.dataclass
class Case:
    operation: str
    shape: str
    bound: str  # of memory: read or copy
    n_bytes: float  # that have to move, each once
    n_flops: float
    make_set: typing.Callable  # the operands of one launch, in new memory
    functions: dict  # of PyTorch and Triton, by name
    error: typing.Callable  # of a result: the largest error over its bound
    kernel: tuple = ()  # minfer's: dims, given inputs, outputs (dtype, shape)
    measures_memory: bool = False
    unchecked: tuple = ()  # functions that compute something else, for their time


def compiled(function):
    return torch.compile(function, dynamic=False, fullgraph=True)


def over_bound(result, expected, bound):
    """The largest error over its bound; WRONG if a result is not finite."""
    return ((result.to(expected) - expected).abs() / bound).max().item() if result.isfinite().all() else WRONG


# ---- rows ----

def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b, EPS)


ROWS = {  # function, operands beside x: r a row, x another x; operations for an element, each function one
    "gelu_erf": (F.gelu, "", 5),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), "", 9),
    "silu": (F.silu, "", 4),
    "layer_norm": (layer_norm, "rr", 7),
    "rms_norm": (lambda x, w: F.rms_norm(x, (x.shape[-1],), w, EPS), "r", 4),
    "layer_norm_gelu_erf": (lambda x, w, b: F.gelu(layer_norm(x, w, b)), "rr", 12),
    "bias_gelu_erf": (lambda x, b: F.gelu(x + b), "r", 6),
    "swiglu": (lambda gate, up: F.silu(gate) * up, "x", 5),
    "softmax": (lambda x: F.softmax(x, -1), "", 5),
}


def row_bound(kind, inputs, expected):
    """Two roundings of the result, one of what is between the parts of a chain, and approximated functions."""
    x = inputs[0]
    if kind == "bias_gelu_erf":
        terms = between = (x + inputs[1]).abs()
    elif kind == "layer_norm_gelu_erf":
        between = layer_norm(x, *inputs[1:]).abs()
        terms = between + 2 * inputs[2].abs()
    elif kind == "layer_norm":
        terms, between = expected.abs() + 2 * inputs[2].abs(), 0
    elif kind in ("gelu_erf", "gelu_tanh", "silu"):
        terms, between = x.abs(), 0
    else:
        terms, between = expected.abs(), 0
    # A chain rounds silu(gate), which may be subnormal, before up multiplies it.
    subnormal = TINY * (1 + inputs[1].abs()) if kind == "swiglu" else TINY
    return 2 * U * expected.abs() + GELU_SLOPE * U * between + FUNCTION * terms + subnormal


def row_case(kind, n_rows, n_columns, device, triton):
    function, others, n_operations = ROWS[kind]
    given_rows = min(n_rows, 256)  # they repeat
    random = lambda *shape: torch.randn(*shape, device=device).half()
    given = [random(given_rows, n_columns)]
    given += [random(given_rows, n_columns) if other == "x" else random(n_columns) for other in others]
    expected = function(*(x.double() for x in given))
    bound = row_bound(kind, [x.double() for x in given], expected)
    functions = {"eager": function, "compile": compiled(function)}
    if triton:
        is_row_kernel = "norm" in kind or kind == "softmax"
        functions["triton"] = (triton.rows if is_row_kernel else triton.elements)(kind)
    n_matrices = 2 + others.count("x")
    return Case(
        kind, f"{n_rows} x {n_columns}", "copy", 2.0 * n_rows * n_columns * n_matrices,
        float(n_operations) * n_rows * n_columns,
        lambda: [x.repeat(n_rows // given_rows, 1) if x.dim() == 2 else x.clone() for x in given], functions,
        lambda result: over_bound(result[:given_rows].to(device), expected, bound),
        ((n_rows, n_columns), given, [(torch.half, (given_rows, n_columns))]))


# ---- GEMM ----

def gemm_case(kind, m, n, k, device, triton):
    x, w = (torch.randn(rows, k, device=device).half() for rows in (m, n))
    some = torch.tensor(sorted({*range(min(m, 64)), *range(max(0, m - 64), m)}), device=device)
    sums = x[some].double() @ w.double().T
    magnitude = x[some].double().abs() @ w.double().abs().T
    expected = F.gelu(sums) if "gelu" in kind else sums
    bound = U * expected.abs() + k * ACCUMULATE * magnitude + TINY
    if "gelu" in kind:
        bound += GELU_SLOPE * U * sums.abs() + FUNCTION * sums.abs()
    function = (lambda x, w: F.gelu(F.linear(x, w))) if "gelu" in kind else F.linear
    functions = {"eager" if "gelu" in kind else "cublas": function}
    if "gelu" in kind:
        functions.update({"compile": compiled(function), "cublas without gelu": F.linear})
    if triton:
        functions["triton"] = triton.gemm(kind)
    return Case(kind, f"{m} x {n} x {k}", "read" if m <= 64 else "copy", 2.0 * (m * k + n * k + m * n), 2.0 * m * n * k,
                lambda: [x.clone(), w.clone()], functions,
                lambda result: over_bound(result.to(device)[some], expected, bound),
                ((m, n, k), [x, w], [(torch.half, (m, n))]), unchecked=("cublas without gelu",))


# ---- attention ----

def plain_attention(q, k, v):
    tokens = q.shape[2]
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(2, 3)) * q.shape[-1]**-0.5
    return scores.masked_fill(later, -math.inf).softmax(-1) @ v


def by_backend(backend, is_causal):
    def run(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    return run


def attention_reference(q, k, v, rows):
    """Attention of some rows, each seeing the keys up to itself; and the bound: scores are off by the sum of a product, and
    plain attention rounds them to F16; weights are rounded to F16, and vanish below its smallest numbers."""
    q, k, v = q.double()[:, rows], k.double(), v.double()
    scores = q @ k.transpose(1, 2) * q.shape[-1]**-0.5
    seen = torch.arange(k.shape[1], device=k.device)[None, :] <= rows[:, None]
    scores = scores.masked_fill(~seen, -math.inf)
    weights = scores.softmax(-1)
    of_sums = q.shape[-1] * ACCUMULATE * q.shape[-1]**-0.5 * q.norm(dim=-1).max() * k.norm(dim=-1).max()
    of_scores = of_sums + 3 * U * scores.masked_fill(~seen, 0).abs().max()
    expected = weights @ v
    bound = (2 * U + 2 * of_scores) * (weights @ v.abs()) + U * expected.abs() + k.shape[1] * TINY * v.abs().max()
    return expected, bound


def in_pages(x):
    """[heads, tokens, head_dim] as minfer's cache has it: [pages, heads, 128, head_dim]"""
    heads, tokens, head_dim = x.shape
    return x.reshape(heads, tokens // 128, 128, head_dim).transpose(0, 1).contiguous()


def prefill_case(tokens, heads, head_dim, device, triton, with_plain):
    given = [torch.randn(1, heads, tokens, head_dim, device=device).half() for _ in range(3)]
    q, k, v = (x[0] for x in given)
    rows = torch.tensor(sorted({*range(min(tokens, 32)), *range(max(0, tokens - 32), tokens)}), device=device)
    some = slice(0, 2)  # heads
    expected, bound = attention_reference(q[some], k[some], v[some], rows)
    functions = {"eager": plain_attention} if with_plain else {}
    if device == "cuda":
        functions["flash"] = by_backend(SDPBackend.FLASH_ATTENTION, True)
        functions["cudnn"] = by_backend(SDPBackend.CUDNN_ATTENTION, True)
    if triton:
        functions["triton"] = triton.attention

    def error(result):
        result = result[0] if result.dim() == 4 else result.transpose(0, 1)  # minfer's: [tokens, heads, head_dim]
        return over_bound(result.to(device)[some][:, rows], expected, bound)

    return Case("attention_prefill", f"{tokens} x {heads} x {head_dim}", "copy", 8.0 * heads * tokens * head_dim,
                2.0 * tokens * (tokens + 1) * heads * head_dim, lambda: [x.clone() for x in given], functions, error,
                ((tokens, heads, heads, head_dim),
                 [q.transpose(0, 1), in_pages(k), in_pages(v)] if tokens % 128 == 0 else [],
                 [(torch.half, (tokens, heads, head_dim))]), measures_memory=True)


def decode_case(context, heads, head_dim, device):
    """One query at the last position of a context; minfer's appends its key and value, too."""
    k, v = (torch.randn(1, heads, context, head_dim, device=device).half() for _ in range(2))
    q = torch.randn(1, heads, 1, head_dim, device=device).half()
    expected, bound = attention_reference(q[0].expand(-1, context, -1), k[0], v[0],
                                          torch.tensor([context - 1], device=device))
    functions = {"eager": F.scaled_dot_product_attention}
    if device == "cuda":
        functions["flash"] = by_backend(SDPBackend.FLASH_ATTENTION, False)
    one = lambda x: x[0, :, -1]
    return Case("attention_decode", f"{context} x {heads} x {head_dim}", "read", 4.0 * heads * context * head_dim,
                4.0 * heads * context * head_dim, lambda: [q.clone(), k.clone(), v.clone()], functions,
                lambda result: over_bound(result.to(device).reshape(heads, 1, head_dim), expected, bound),
                ((context, heads, heads, head_dim),
                 [one(q)[None], one(k)[None], one(v)[None], in_pages(k[0]), in_pages(v[0])]
                 if context % 128 == 0 else [], [(torch.half, (1, heads, head_dim))]), measures_memory=True)


# ---- routing of a mixture of experts ----

def route_case(n_rows, n_experts, n_active, device):
    """The experts of each row, their weights, and the rows in the order of their experts."""
    logits = torch.randn(n_rows, n_experts, device=device)
    best = logits.double().softmax(-1).topk(n_active, -1)
    experts = torch.arange(n_experts, device=device)

    def function(logits):
        weights, chosen = logits.softmax(-1).topk(n_active, -1)
        pairs = chosen.flatten()
        begins = (pairs[:, None] == experts).sum(0).cumsum(0)
        return weights, chosen.int(), begins, pairs.sort(stable=True).indices

    def error(result):
        weights, chosen = (x.to(device) for x in result[:2])
        return over_bound(weights, best.values, FUNCTION * best.values) if chosen.equal(best.indices.int()) else WRONG

    return Case("route", f"{n_rows} x {n_experts}, {n_active} chosen", "copy",
                4.0 * n_rows * n_experts + 16.0 * n_rows * n_active, 5.0 * n_rows * n_experts,
                lambda: [logits.clone()], {"eager": function, "compile": compiled(function)}, error,
                ((n_rows, n_experts, n_active), [logits],
                 [(torch.float32, (n_rows, n_active)), (torch.int32, (n_rows, n_active))]))


# ---- which ----

MANY = [(8192, 4096), (8192, 11008), (65536, 8192)]
LINEAR = [(12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008)]  # N, K of Llama-2-7B
GEMMS = ([(4096, 4096, 4096), (8192, 8192, 8192)] + [(m, n, k) for m in (512, 2048, 4096) for n, k in LINEAR
                                                      if (m, n, k) != (4096, 4096, 4096)]
         + [(64, 22016, 4096), (16, 22016, 4096)])


def cases(section, device, triton, quick):
    """Functions that make the cases of a section: one at a time, since each holds its operands."""
    if section == "rows":
        for kind in ROWS:
            for shape in [(256, 128), (512, 96)] if quick else MANY:
                yield lambda kind=kind, shape=shape: row_case(kind, *shape, device, triton)
    elif section == "gemm":
        for shape in [(80, 96, 64)] if quick else GEMMS:
            yield lambda shape=shape: gemm_case("gemm", *shape, device, triton)
        for shape in [(80, 96, 64)] if quick else [(m, 11008, 4096) for m in (512, 2048, 4096)]:
            yield lambda shape=shape: gemm_case("gemm_gelu_erf", *shape, device, triton)
    elif section == "attention":
        for tokens in (128, 200) if quick else (512, 2048, 4096, 8192, 16384, 32768):
            size = (2, 64) if quick else (32, 128)
            yield lambda tokens=tokens, size=size: prefill_case(tokens, *size, device, triton, tokens <= 8192)
        for context in (256,) if quick else (1024, 4096, 32768):
            size = (2, 64) if quick else (32, 128)
            yield lambda context=context, size=size: decode_case(context, *size, device)
    elif section == "route":
        for shape in [(50, 16, 4)] if quick else [(2048, 8, 2), (2048, 128, 8), (16384, 128, 8)]:
            yield lambda shape=shape: route_case(*shape, device)
