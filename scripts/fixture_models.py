"""What the scripts that write small models for tests share: seeded random weights, their logits in
float64, and files. Needs torch, transformers."""

import json
import math

import numpy as np
import torch
import transformers

N_TOKENS = 24
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


# The least distance between the logits of an expert that is chosen and of one that is not: so that
# other roundings, also those of half precision, choose the same.
LEAST_GAP = 0.07


def make_model(config, dtype, seed, n_tokens=N_TOKENS, adjust=None):
    """A model whose every weight, norms and biases too, is random and exact in `dtype`.

    adjust(model), if given, changes them, with torch's generator in a state that follows from the
    seed."""
    while True:
        model = random_model(config, dtype, seed)
        if adjust is not None:
            adjust(model)
        if smallest_gap(model, tokens(config.vocab_size, n_tokens)) >= LEAST_GAP:
            return model
        seed += 1000


def smallest_gap(model, ids):
    gaps = [math.inf]

    def look(router, _, output):
        logits = output[0]
        if hasattr(router, "e_score_correction_bias"):  # in units of logits
            logits = 4 * (logits.sigmoid() + router.e_score_correction_bias)
        ranked = logits.sort(descending=True).values
        if router.top_k < ranked.shape[-1]:
            gaps.append((ranked[:, router.top_k - 1] - ranked[:, router.top_k]).min().item())

    hooks = [module.register_forward_hook(look) for module in model.modules()
             if "Router" in type(module).__name__]
    if hooks:
        model.set_experts_implementation("eager")
        with torch.no_grad():
            model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return min(gaps)


def random_model(config, dtype, seed):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_((0.3 * torch.randn_like(buffer)).to(dtype).to(torch.float32))
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                centre = 0.0 if name.endswith("bias") else 1.0
                weight.copy_(centre + 0.3 * torch.randn_like(weight))
            else:  # large enough for attention to be far from even
                weight.copy_(torch.randn_like(weight) * 1.5 / weight.shape[-1] ** 0.5)
            weight.copy_(weight.to(dtype).to(torch.float32))
    return model.eval()


def float64_logits(model, ids):
    model.set_experts_implementation("eager")  # the other ones take no float64
    with torch.no_grad():
        return model.double()(torch.tensor([ids])).logits[0]


def write_expected(path, ids, logits):
    rows = [[float(f"{value:.10g}") for value in row] for row in logits.tolist()]
    path.write_text(json.dumps({"ids": ids, "logits": rows}, separators=(",", ":")) + "\n")


def write_hf(out, model, dtype, shard_size):
    is_stacked = "stacked" in out.name
    model.to(dtype).save_pretrained(out, max_shard_size=shard_size or "1GB",
                                    save_original_format=not is_stacked)
    (out / "generation_config.json").unlink(missing_ok=True)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tokens(vocab_size, n):
    return np.random.default_rng(5).integers(0, vocab_size, n).tolist()
