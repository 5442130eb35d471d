#!/usr/bin/env python3
"""Writes tests/fixtures/tokenizers/NAME.json, small tokenizers of each form that is supported, and
NAME.cases.json, what Hugging Face's `tokenizers` makes of random texts with them.

usage: make_tokenizer_fixtures.py [OUT_DIR [CASES]]"""
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"\p{N}{1,3}" + REST
QWEN2 = CONTRACTIONS + r"\p{N}" + REST
TEXT = """The quick brown fox jumps over the lazy dog, and then it doesn't look back at the others.
We'll see what they're doing in 1998, 2007 and 31415 when the rain in the north has stopped.
She'd said that there was nothing to say; I've heard the same thing from him (and them).
    for (int i = 0; i < 100; ++i) {\n\t\tprint("hello, world");\n    }
naïve café déjà vu, Führer, smörgåsbord. Привет, мир! Как дела? 我想在北京工作。 你好世界 สวัสดี
The training of the tokenizer needs some more words: walking, talking, singing, bringing, ending.
""".splitlines()
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "ABC XYZ the of and  ", "0123456789½²٣",
    "     \t\n\r\n\u00a0\u3000\u2003\u0085\u180e\u200b", "'s't'RE'Ve'M'll'D'ſ",
    "!?.,;:-_()[]{}<>@#$%^&*+=/|\\~`\"'", "éèüñçßøåœµ", "абвгдеёжз", "我想在工作天～", "กขค่้ា", "😀🚀👩\u200d👧🏽",
    "\u0301\u0300e\u0301A\u030a\u1100\u1161\u11a8", "한국어", "\x00\x01\x7f", "ﬁﷺ①", "𝔘𐍈",
]
BYTE_PIECES = ["<0x%02X>" % i for i in range(256)]


def train(tokenizer, size, special, **more):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False, **more)
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    return tokenizer


def byte_level(steps, special, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return train(tokenizer, 400, special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def bos_template(token, token_id):
    return processors.TemplateProcessing(single=token + " $A", pair=token + " $A $B",
                                         special_tokens=[(token, token_id)])


def sentencepiece_style(normalizer=None, pre_tokenizer=None, byte_fallback=True):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = bos_template("<s>", 1)
    special = ["<unk>", "<s>", "</s>"]
    if byte_fallback:
        train(tokenizer, 480, special + BYTE_PIECES)
    else:
        train(tokenizer, 300, special, limit_alphabet=40)
    # In published files byte pieces are part of the vocabulary alone.
    plain = json.loads(tokenizer.to_str())
    plain["added_tokens"] = [t for t in plain["added_tokens"] if not t["content"].startswith("<0x")]
    for token in plain["added_tokens"]:
        token["normalized"] = False
    return Tokenizer.from_str(json.dumps(plain))


def make_all():
    byte = pre_tokenizers.ByteLevel
    split = lambda pattern: pre_tokenizers.Split(Regex(pattern), "isolated")
    blanks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    metaspace = pre_tokenizers.Metaspace

    llama3 = byte_level([split(LLAMA3), byte(add_prefix_space=False, use_regex=False)],
                        ["<|begin_of_text|>", "<|eot_id|>"], ignore_merges=True)
    llama3.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), bos_template("<|begin_of_text|>", 0)])
    prefixed = byte_level([byte(add_prefix_space=True)], ["<s>"])
    prefixed.add_tokens([AddedToken("<tool>", lstrip=True, rstrip=True), AddedToken("<too l>")])
    qwen2 = byte_level([split(QWEN2), byte(add_prefix_space=False, use_regex=False)], ["<|im_end|>"])
    qwen2.normalizer = normalizers.NFC()
    return {
        "gpt2": byte_level([byte(add_prefix_space=False)], ["<|endoftext|>"]),
        "llama3": llama3,
        "qwen2": qwen2,
        "smollm": byte_level([pre_tokenizers.Digits(individual_digits=True),
                              byte(add_prefix_space=False)], ["<|im_start|>"]),
        "prefixed": prefixed,
        "merged-behaviors": byte_level(
            [pre_tokenizers.Split(" ", "merged_with_next"),
             pre_tokenizers.Split(Regex(r"[\p{P}\p{S}]"), "merged_with_previous"),
             pre_tokenizers.Split(Regex(r"\p{N}"), "contiguous"),
             pre_tokenizers.Split(Regex(r"\t"), "removed"),
             pre_tokenizers.Split(Regex(r"[^x]+"), "isolated", invert=True),
             byte(add_prefix_space=False, use_regex=False)], ["<s>"]),
        "llama2-normalizer": sentencepiece_style(blanks),
        "metaspace-first": sentencepiece_style(pre_tokenizer=metaspace(prepend_scheme="first")),
        "metaspace-always": sentencepiece_style(pre_tokenizer=metaspace(prepend_scheme="always")),
        "metaspace-whole": sentencepiece_style(
            pre_tokenizer=metaspace(prepend_scheme="never", split=False)),
        "unknown": sentencepiece_style(blanks, byte_fallback=False),
    }


def random_text(rng):
    words = " ".join(TEXT).split()
    text = ""
    for _ in range(rng.randint(0, 8)):
        if rng.random() < 0.45:
            text += rng.choice(["", " ", " ", "  "]) + rng.choice(words)
        else:
            alphabet = rng.choice(ALPHABETS)
            text += "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 5)))
    return text


def main():
    default = pathlib.Path(__file__).parent.parent / "tests/fixtures/tokenizers"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    n_cases = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    fixed = ["", "a", " ", "  ", "</s> x", "<|endoftext|>hi", "a <tool>  b", "x<too l> y<tool>",
             "<|im_end|>\n", "one two<s> three"]
    for name, tokenizer in make_all().items():
        (out / f"{name}.json").write_text(tokenizer.to_str() + "\n")
        texts = fixed + [random_text(rng) for _ in range(n_cases - len(fixed))]
        cases = [{"text": t, "ids": tokenizer.encode(t).ids,
                  "decoded": tokenizer.decode(tokenizer.encode(t).ids)} for t in texts]
        lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
        (out / f"{name}.cases.json").write_text(f"[\n{lines}\n]\n")


main()
