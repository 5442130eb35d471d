#!/usr/bin/env python3
"""Holds minfer's log-probabilities on a card against Hugging Face transformers on the same card.

Makes a Llama-2-7B-shaped checkpoint of seeded random FP16 weights in DIR (unless it is there), lets
minfer decode from it greedily, and evaluates the same tokens with transformers in float32 and in
FP16. Prints one JSON object; exits 1 where a bar is missed. Needs PyTorch with CUDA, transformers
and a SentencePiece tokenizer.model of 32000 tokens.

  scripts/compare_transformers.py DIR --minfer build/release/tools/minfer --tokenizer FILE
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

BAR = 0.02  # nats, over all positions; and where the reference's two best may change places


def shape_of(n_layers):
    return LlamaConfig(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=n_layers,
        num_attention_heads=32, num_key_value_heads=32, max_position_embeddings=4096,
        rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, bos_token_id=1,
        eos_token_id=2, architectures=["LlamaForCausalLM"], dtype="float16")


def make_checkpoint(folder, config, tokenizer):
    """Normal weights of deviation 0.02, norms near 1; shards of one layer each."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    generator = torch.Generator("cuda").manual_seed(1)
    shards, index = {}, {}
    for name, parameter in model.named_parameters():
        layer = name.split(".")[2] if ".layers." in name else "rest"
        values = torch.randn(parameter.shape, generator=generator, device="cuda") * 0.02
        if parameter.dim() == 1:
            values += 1
        shards.setdefault(layer, {})[name] = values.half().cpu()
    for layer, tensors in shards.items():
        file = f"model-{layer}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index.update({name: file for name in tensors})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index}))
    shutil.copy(tokenizer, folder / "tokenizer.model")
    settings = config.to_dict()
    settings["rope_theta"] = 10000.0
    settings["torch_dtype"] = "float16"
    (folder / "config.json").write_text(json.dumps(settings))


def decode_with_minfer(options):
    command = [options.minfer, "generate", "-m", str(options.folder), "--device", "cuda", "--temp",
               "0", "-n", str(options.tokens), "--ignore-eos", "--logprobs", "20", "--json",
               options.prompt]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    ids = subprocess.run([options.minfer, "tokenize", "-m", str(options.folder), "--ids",
                          options.prompt], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [int(i) for i in ids.split()], result


@torch.no_grad()
def reference(options, config, ids, n_prompt, dtype):
    model = LlamaForCausalLM.from_pretrained(options.folder, dtype=dtype).cuda().eval()
    logits = model(torch.tensor([ids], device="cuda")).logits[0, n_prompt - 1:-1].double()
    del model
    torch.cuda.empty_cache()
    return torch.log_softmax(logits, -1).cpu()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--minfer", default="build/release/tools/minfer")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", default="The history of the steam engine begins")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False

    config = shape_of(options.layers)
    if not (options.folder / "config.json").exists():
        make_checkpoint(options.folder, config, options.tokenizer)
    prompt, result = decode_with_minfer(options)
    ids = prompt + result["tokens"]
    exact = reference(options, config, ids, len(prompt), torch.float32)
    half = reference(options, config, ids, len(prompt), torch.float16)

    worst = worst_half = 0.0
    exchanged = []
    for position, entry in enumerate(result["logprobs"]):
        for candidate in entry["top"]:
            token, ours = candidate["id"], candidate["logprob"]
            want = exact[position, token].item()
            worst = max(worst, abs(ours - want))
            worst_half = max(worst_half, abs(half[position, token].item() - want))
        best = exact[position].topk(2)
        if best.indices[0].item() != ids[len(prompt) + position]:
            exchanged.append((best.values[0] - exact[position, ids[len(prompt) + position]]).item())
    print(json.dumps({
        "card": torch.cuda.get_device_name(0), "layers": options.layers,
        "positions": len(result["logprobs"]), "max_logprob_difference": worst,
        "transformers_fp16_difference": worst_half, "exchanged_gaps": exchanged}))
    return 0 if worst <= min(BAR, 2 * worst_half) and all(g < BAR for g in exchanged) else 1


if __name__ == "__main__":
    sys.exit(main())
