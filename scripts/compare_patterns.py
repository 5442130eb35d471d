#!/usr/bin/env python3
"""Compares how minfer and the tokenizers package cut random texts by patterns:

    scripts/compare_patterns.py build/release/tests/models/split_texts [--strings 5000] [--seed 1]

Each text must be cut alike, or the pattern refused by minfer with a reason. What tokenizers refuses
may be refused or not. Exits with 1 where a text is cut otherwise.
"""
import argparse
import random
import subprocess
import sys

from tokenizers import Regex, pre_tokenizers

REAL = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "bloom": " ?[^(\\s|.,!?…。，、।۔،)]+",
    "bailingmoe": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "seed-coder": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    "exaone-moe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    "jais-2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
}
# Steps, one after another.
CHAINS = {
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", REAL["gpt-2"], "[0-9][0-9][0-9]"],
    "starcoder": [r"\p{N}", REAL["gpt-2"]],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", REAL["gpt-4o"]],
    "viking": [REAL["bloom"], r"\p{N}"],
}
ATOMS = [r"\w", r"\W", r"\s", r"\S", r"\d", r"\h", r"\H", ".", "a", "b", "s", "é", " ", "1", r"\n",
         r"\p{L}", r"\p{^Lu}", r"\P{N}", r"\p{Han}", r"\p{Hiragana}", r"\p{Punct}", r"\p{Alphabetic}",
         "[a-m]", "[^a-m]", "[[a-m][0-4]]", "[a-z&&[^aeiou]]", r"[^\w\s]", "[[:alpha:]]",
         "[[:^punct:]]", "[[:upper:][:digit:]]", r"[\p{L}\p{M}]", r"[^\S\n]", "[]a]", "[a-]", "[-a]",
         r"[\d.,]", r"\x{e9}", r"é", r"\R", "[^(\\s|[.,!?])]", r"\p{Emoji}", r"\p{Cyrillic}",
         r"[\w&&\P{Latin}]", r"\x41", "[[:punct:]]", "[[:word:]]", r"[\h&&[^a]]", "[à-ö]"]
ANCHORS = ["^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G", r"\K"]
QUANTIFIERS = ["", "", "", "", "*", "+", "?", "*?", "+?", "??", "*+", "++", "?+", "{2}", "{1,3}", "{2,}",
               "{,2}", "{1,2}?", "{1,2}+", "{2}?", "{3,1}"]
GROUPS = ["(%s)", "(?:%s)", "(?>%s)", "(?i:%s)", "(?m:%s)", "(?<name>%s)", "(?x: %s )", "(?-i:%s)"]
LOOKS = ["(?=%s)", "(?!%s)", "(?<=%s)", "(?<!%s)"]
PIECES = ["hello", "World", "it's", "IT'S", "don't", "we'LL", "'ſ", "12345", "0aF9", " ", "  ", "\n", "\r\n",
          "\t", "\u00a0", "\u2003", "\u3000", "\x85", "é", "e\u0301", "naïve", "Привет", "мир", "世界", "ひらがな",
          "カタカナ", "한국어", "العربية", "١٢٣", "हिन्दी", "कि", "ไทย", "ΑΒΓ", "ς", "ß", "ẞ", "ﬁ", "İ", "K",
          "Å", "😀", "👩‍👩‍👧", "🩷", "🏽", "½", "²", "Ⅷ", "⒈", "_", "-", ".", ",", "!?", "...", "(", ")", "[",
          "]", "$", "€", "+", "=", "<", ">", "|", "~", "`", "^", "\\", "/", "\x00", "\x01", "\x7f", "\u200d",
          "\ufeff", "\u180e", "\ufffd", "\U000105c0", "\U0001e5d0", "a", "b", "s", "A", "1", "x_y", "fooBar",
          "、", "。", "…", "«", "»"]


def random_text(rng):
    if rng.random() < 0.15:  # any character
        codes = [rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x110000)])
                 for _ in range(rng.randrange(1, 12))]
        return "".join(chr(c) for c in codes if not 0xD800 <= c <= 0xDFFF)
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 14)))


def random_pattern(rng, depth=0):
    branches = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        items = []
        for _ in range(rng.choice([1, 1, 2, 2, 3])):
            kind = rng.random()
            if kind < 0.08:
                items.append(rng.choice(ANCHORS))
            elif kind < 0.25 and depth < 3:
                items.append(rng.choice(GROUPS) % random_pattern(rng, depth + 1) + rng.choice(QUANTIFIERS))
            elif kind < 0.33 and depth < 2:
                items.append(rng.choice(LOOKS) % random_pattern(rng, depth + 2))
            else:
                items.append(rng.choice(ATOMS) + rng.choice(QUANTIFIERS))
        branches.append("".join(items))
    return "|".join(branches)


def reference(patterns):
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


def cases(rng, n_strings):
    """(kind, source, reference or None, texts)"""
    texts = [random_text(rng) for _ in range(n_strings)]
    for name, pattern in REAL.items():
        yield "pattern", pattern, reference([pattern]), texts
        yield "name", name, reference([pattern]), texts
    for name, patterns in CHAINS.items():
        yield "name", name, reference(patterns), texts
    for _ in range(n_strings):
        pattern = random_pattern(rng)
        try:
            known = reference([pattern])
        except Exception:
            known = None
        yield "pattern", pattern, known, rng.sample(texts, 8)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("split_texts")
    parser.add_argument("--strings", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    todo = list(cases(rng, options.strings))
    lines = [f"{kind} {source.encode().hex()} {text.encode().hex()}"
             for kind, source, _, texts in todo for text in texts]
    answers = iter(subprocess.run([options.split_texts], input="\n".join(lines), text=True,
                                  stdout=subprocess.PIPE, check=True).stdout.splitlines())
    n_equal, differing, refused = 0, {}, {}
    for kind, source, known, texts in todo:
        for text in texts:
            answer = next(answers)
            if answer.startswith("refused"):
                if known is not None:
                    refused[source] = answer
                continue
            if known is None:
                continue
            own, at, data = [], 0, text.encode()
            for size in answer.split():
                own.append(data[at:at + int(size)].decode(errors="replace"))
                at += int(size)
            try:
                wanted = [word for word, _ in known.pre_tokenize_str(text)]
            except BaseException as failure:  # a panic of the package
                print(f"tokenizers fails on {source!r}, {text!r}: {failure}", file=sys.stderr)
                continue
            if own == wanted:
                n_equal += 1
            else:
                differing.setdefault(source, (text, own, wanted))
    for source, (text, own, wanted) in differing.items():
        print(f"{source}\n  text   {text!r}\n  minfer {own}\n  wanted {wanted}")
    reasons = {}
    for answer in refused.values():
        reason = answer.rsplit('": ', 1)[-1]
        reasons[reason] = reasons.get(reason, 0) + 1
    print(f"{n_equal} texts cut alike, {len(differing)} patterns cut otherwise, {len(refused)} refused")
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        print(f"  {count:5} {reason}")
    sys.exit(bool(differing))


main()
