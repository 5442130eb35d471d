#!/usr/bin/env python3
"""Writes models/unicode_nfc_data.inc from the Unicode database that Python carries."""
import pathlib
import sys
import unicodedata

HANGUL = range(0xAC00, 0xD7A4)  # by arithmetic


def rows(entries):
    lines, line = [], ""
    for entry in entries:
        text = "{" + ",".join(str(v) if v < 256 else f"{v:#x}" for v in entry) + "},"
        if len(line) + len(text) > 100:
            lines.append(line)
            line = ""
        line += text
    return "\n".join(lines + [line])


def main():
    singletons, pairs, classes = [], [], []
    for code in range(sys.maxunicode + 1):
        combining = unicodedata.combining(chr(code))
        if combining:
            last = classes[-1] if classes else None
            if last and last[1] == code - 1 and last[2] == combining:
                last[1] = code
            else:
                classes.append([code, code, combining])
        parts = unicodedata.decomposition(chr(code))
        if code in HANGUL or not parts or parts.startswith("<"):
            continue
        codes = [int(part, 16) for part in parts.split()]
        if len(codes) == 1:
            singletons.append((code, codes[0]))
            continue
        whole = unicodedata.normalize("NFD", chr(code))
        composes = unicodedata.normalize("NFC", whole) == chr(code)
        pairs.append((code, *codes, int(composes)))
    text = f"""// Written by scripts/make_nfc_data.py from Unicode {unicodedata.unidata_version}. clang-format off
constexpr Singleton kSingletons[] = {{
{rows(singletons)}
}};
constexpr Pair kPairs[] = {{
{rows(pairs)}
}};
constexpr ClassRange kClassRanges[] = {{
{rows(classes)}
}};
// clang-format on
"""
    path = pathlib.Path(__file__).parent.parent / "models/unicode_nfc_data.inc"
    path.write_text(text)


main()
