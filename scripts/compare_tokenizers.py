#!/usr/bin/env python3
"""Holds minfer's token ids and texts against Hugging Face's.

  compare_tokenizers.py files FILE... [-n TEXTS]   each FILE a tokenizer.json or a tokenizer.model
  compare_tokenizers.py random [-n TOKENIZERS]     tokenizer.json files of random parts

The reference is `tokenizers` for a tokenizer.json and `sentencepiece` for a tokenizer.model. The
texts are of six scripts, code, emoji, marks, controls and the tokenizer's own added tokens. Prints
one line a tokenizer and the first differences; exits 1 where there is one. What docs/tokenizers.md
explains is counted apart. Needs the test binary encode_lines (ninja encode_lines)."""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENCODE_LINES = ROOT / "build/release/tests/models/encode_lines"
SCRIPTS = [
    "the quick brown fox jumps over lazy dogs and she didn't say they're it's 'Tis I'LL we've".split(),
    "съешь ещё этих мягких французских булок да выпей чаю Ёлка".split(),
    "我 想 在 北京 工作 。 你好 世界 ， 今天 天气 很好 「 引用 」 日本語 の テキスト カタカナ".split(),
    "नमस्ते दुनिया क्षत्रिय हिन्दी में लिखा है किताब".split(),
    "مرحبا بالعالم كيف حالك اليوم ١٢٣ ، لُغَة".split(),
    "สวัสดี ชาวโลก 한국어 문장 입니다 ㄱㄴㄷ Ελληνικά γράμματα".split(),
    "naïve café Führer smörgåsbord e\u0301 A\u030a o\u0302\u0323 ﬁ ﷺ ① Å İ ß ǅ ﬀ ½ ² ٣ Ⅷ ⁵".split(),
    ["def f(x):\n    return x**2\n", "for (int i = 0; i < 10; ++i) {", "\t\tif x != y:", "}\n\n",
     "https://a.b/c?d=e&f=%20", "std::vector<int>", "x=1;y=2", "#include <a.h>\r\n", "a_b_c", "3.14e-10"],
    ["😀", "🚀🚀", "👩\u200d👧🏽", "🩷", "🇩🇪", "❤️", "\u200d", "\ufe0f"],
    [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2003", "\u0085", "\u2028", "\u180e",
     "\u200b", "\x0b", "\x0c", "\x1c", "\x1f"],
    ["\x00", "\x01", "\x7f", "\u0300", "\u0301\u0302", "\ufeff", "\ufffd", "\u202e", "\U0001d518", "\ue000"],
    ["1", "12", "123", "1234567", "0", "007", "1,000.50", "12:30", "²³", "१२३"],
    list("!?.,;:-_()[]{}<>@#$%^&*+=/|\\~`\"'…—–«»„“”¿¡§€£"),
    ["▁", "▁▁a", "Ġ", "Ċ", "<0x0A>", "##ing", "</w>", "<unk>", "<s>", "</s>", "<", ">", "|"],
]


def make_texts(n, added, seed=1):
    rng = random.Random(seed)
    texts = ["", " ", "a", " a", "a ", "  a  b  ", "\n", "a\n", "\na"]
    while len(texts) < n:
        pools = rng.sample(SCRIPTS, rng.randint(1, 3)) + ([added] if added and rng.random() < .4 else [])
        joiner = rng.choice(["", " ", " ", " ", "  ", "\n"])
        words = [rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 12))]
        text = joiner.join(words)
        if rng.random() < .1:
            text = rng.choice([" ", "\n", "\t"]) + text
        if rng.random() < .1:
            text = text.upper() if rng.random() < .5 else text.title()
        if rng.random() < .1:  # any characters
            text += "".join(chr(rng.choice([rng.randrange(0x20, 0x250), rng.randrange(0x300, 0x3000),
                                            rng.randrange(0x3000, 0xd7ff), rng.randrange(0x1f000, 0x1fb00)]))
                            for _ in range(rng.randint(1, 6)))
        texts.append(text)
    return texts[:n]


def minfer(path, questions):
    """The answers, or the line that refuses the tokenizer."""
    run = subprocess.run([ENCODE_LINES, path], input="".join(json.dumps(q) + "\n" for q in questions),
                         capture_output=True, text=True)
    if run.returncode == 3:
        return run.stderr.strip()
    if run.returncode != 0:
        raise SystemExit(f"{path}: encode_lines ended with {run.returncode}: {run.stderr}")
    return [json.loads(line) for line in run.stdout.splitlines()]


def bos_of(post_processor):
    """The id that a template puts in front, and how many ids it puts behind."""
    front, behind = [], 0
    for step in (post_processor or {}).get("processors", [post_processor]) if post_processor else []:
        if step["type"] == "TemplateProcessing":
            seen = False
            for item in step["single"]:
                if "Sequence" in item:
                    seen = True
                elif seen:
                    behind += 1
                else:
                    front += step["special_tokens"][item["SpecialToken"]["id"]]["ids"]
        elif step["type"] in ("BertProcessing", "RobertaProcessing"):
            front, behind = [step["cls"][1]], 1
    return front, behind


def reference_json(path, texts):
    from tokenizers import Tokenizer
    spec = json.loads(pathlib.Path(path).read_text())
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    front, behind = bos_of(spec.get("post_processor"))
    ids = []
    for encoding in tokenizer.encode_batch(texts):
        own = encoding.ids[:len(encoding.ids) - behind]
        if front and own[:2] == front * 2:  # minfer never puts two
            own = own[1:]
        ids.append(own)

    def decode(one):
        try:
            return tokenizer.decode(one, skip_special_tokens=True)
        except BaseException as error:  # its decoder Strip panics on a token of nothing else
            if "PanicException" not in type(error).__name__:
                raise
            return None
    return ids, lambda many: [decode(one) for one in many]


def reference_model(path, texts):
    import sentencepiece
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ids = [[model.bos_id()] + model.encode(text) for text in texts]
    return ids, lambda many: [model.decode(one) for one in many]


def compare(path, n, quiet=False):
    is_json = open(path, "rb").read(1) == b"{"
    added, normalized = [], False
    if is_json:
        spec = json.loads(pathlib.Path(path).read_text())
        added = [t["content"] for t in spec["added_tokens"]]
        added = added + [" " + t + " " for t in added] + [t + "x" for t in added]
    texts = make_texts(n, added if is_json else [])
    if not is_json:  # control tokens are no text to sentencepiece
        texts = [t for t in texts if "<s>" not in t and "</s>" not in t and "<unk>" not in t]
    got = minfer(path, texts)
    if isinstance(got, str):
        return "refused", got
    want, decode = (reference_json if is_json else reference_model)(path, texts)
    differences = [(t, w, g) for t, w, g in zip(texts, want, got) if w != g]
    # minfer shows the unknown token, tokenizers leaves it out.
    unknown = spec["model"].get("unk_token") if is_json else None
    unknown = spec["model"]["vocab"].get(unknown, -1) if unknown else spec["model"].get("unk_id", -1) if is_json else -1
    lists = [w for w in want if w and unknown not in w][: n // 2]
    decoded = list(zip(lists, decode(lists), minfer(path, lists)))
    decoder = json.dumps(spec["decoder"]) if is_json else ""
    in_bytes = {t["id"] for t in spec["added_tokens"] if not t["content"].isascii()} if is_json else set()
    if '"ByteLevel"' in decoder:  # an added token stands for itself
        decoded = [d for d in decoded if not in_bytes & set(d[0])]
    if '"Metaspace"' in decoder or not is_json:  # one blank goes in front, not all of the first token
        decoded = [(i, w and w.replace(" ", ""), g.replace(" ", "")) for i, w, g in decoded]
    wrong_text = [d for d in decoded if d[1] is not None and d[1] != d[2]]
    result = f"{len(texts)} texts, {len(differences)} differ; {len(lists)} decoded, {len(wrong_text)} differ"
    if not quiet:
        for difference in differences[:5]:
            print("  encode", *map(repr, difference))
        for difference in wrong_text[:5]:
            print("  decode", *map(repr, difference))
    return ("differs" if differences or wrong_text else "same"), result


def random_tokenizer(rng):
    """The text of a tokenizer.json: parts drawn at random over a vocabulary trained on SCRIPTS."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    unigram = rng.random() < .25
    byte_level = not unigram and rng.random() < .6
    byte_fallback = not byte_level and rng.random() < .6
    unknown = not byte_level and rng.random() < .7
    model = models.BPE(unk_token="<unk>" if unknown else None, fuse_unk=rng.random() < .5,
                       byte_fallback=byte_fallback, ignore_merges=rng.random() < .3)
    tokenizer = Tokenizer(model)
    if rng.random() < .6:
        steps = [rng.choice([
            lambda: normalizers.NFC(), lambda: normalizers.NFD(), lambda: normalizers.Prepend("▁"),
            lambda: normalizers.Replace(" ", "▁"), lambda: normalizers.Replace(Regex(r"\d+"), "0"),
            lambda: normalizers.Replace("a", "bb"), lambda: normalizers.Strip(rng.random() < .5, rng.random() < .5),
            lambda: normalizers.StripAccents()])() for _ in range(rng.randint(1, 3))]
        tokenizer.normalizer = normalizers.Sequence(steps) if len(steps) > 1 else steps[0]
    behaviors = ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]
    splits = [
        lambda: pre_tokenizers.Whitespace(), lambda: pre_tokenizers.WhitespaceSplit(),
        lambda: pre_tokenizers.Digits(rng.random() < .5), lambda: pre_tokenizers.Punctuation(rng.choice(behaviors)),
        lambda: pre_tokenizers.CharDelimiterSplit(rng.choice("a -")),
        lambda: pre_tokenizers.Split(rng.choice([" ", "a", Regex(r"\s+"), Regex("[0-9][0-9][0-9]"), Regex(r"\p{L}+")]),
                                     rng.choice(behaviors), rng.random() < .3),
        lambda: pre_tokenizers.BertPreTokenizer()]
    steps = [rng.choice(splits)() for _ in range(rng.randint(0, 2))]
    if byte_level:
        steps.append(pre_tokenizers.ByteLevel(rng.random() < .4, use_regex=rng.random() < .6))
        steps += [rng.choice(splits)() for _ in range(rng.choice([0, 0, 1]))]
        tokenizer.decoder = decoders.ByteLevel()
    else:
        if rng.random() < .6:
            steps.append(pre_tokenizers.Metaspace(prepend_scheme=rng.choice(["always", "first", "never"]),
                                                  split=rng.random() < .5))
        tokenizer.decoder = rng.choice([
            lambda: decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)]),
            lambda: decoders.Sequence([decoders.Strip("▁", 1, 1), decoders.ByteFallback(), decoders.Fuse()]),
            lambda: decoders.Metaspace(prepend_scheme=rng.choice(["always", "never"])),
            lambda: None])() or None
    if steps:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    special = ["<unk>", "<s>", "</s>"]
    if unigram:
        trainer = trainers.UnigramTrainer(vocab_size=rng.choice([350, 600]), special_tokens=special, unk_token="<unk>",
                                          show_progress=False)
        tokenizer.model = models.Unigram()
    special += (["<0x%02X>" % i for i in range(256)] if byte_fallback else [])
    if not unigram:
        trainer = trainers.BpeTrainer(vocab_size=rng.choice([350, 500, 900]), special_tokens=special, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_level else [],
                                      limit_alphabet=rng.choice([60, 400]))
    corpus = [" ".join(pool) for pool in SCRIPTS[:8]] * 3
    tokenizer.train_from_iterator(corpus, trainer)
    for _ in range(rng.randint(0, 4)):
        content = rng.choice(["<tool>", "<|tool|>", "ab", " x", "the", "é", "[A]", "[A]B", "DOG", "a b", "▁the"])
        flags = {name: rng.random() < .3 for name in ("lstrip", "rstrip", "single_word", "normalized")}
        token = AddedToken(content, **flags)
        (tokenizer.add_special_tokens if rng.random() < .5 else tokenizer.add_tokens)([token])
    spec = json.loads(tokenizer.to_str())
    if unigram and byte_fallback:
        spec["model"]["byte_fallback"] = True
        spec["model"]["vocab"] += [["<0x%02X>" % i, -99] for i in range(256)]
        for i, token in enumerate(spec["added_tokens"][3:]):
            token["id"] = len(spec["model"]["vocab"]) + i
    # The bytes are pieces of the model and no added tokens.
    spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["content"].startswith("<0x")]
    return json.dumps(spec, ensure_ascii=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["files", "random"])
    parser.add_argument("files", nargs="*")
    parser.add_argument("-n", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="a folder for the random tokenizers that differ")
    options = parser.parse_intermixed_args()
    counts = {}
    if options.mode == "files":
        for path in options.files:
            verdict, told = compare(path, options.n or 5000)
            counts[verdict] = counts.get(verdict, 0) + 1
            print(f"{path}: {verdict}: {told}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(options.n or 200) if options.mode == "random" else []:
            path = pathlib.Path(folder) / "tokenizer.json"
            path.write_text(random_tokenizer(random.Random(options.seed * 100000 + i)))
            verdict, told = compare(path, 150)
            counts[verdict] = counts.get(verdict, 0) + 1
            if verdict != "same":
                spec = json.loads(path.read_text())
                print(f"{i}: {verdict}: {told}\n  " + json.dumps({k: spec[k] for k in (
                    "normalizer", "pre_tokenizer", "decoder")} | {"added": spec["added_tokens"][3:]}, ensure_ascii=False)[:900], flush=True)
                if options.keep:
                    (pathlib.Path(options.keep) / f"{options.seed}-{i}.json").write_text(path.read_text())
    print(counts)
    sys.exit("differs" in counts)


main()
