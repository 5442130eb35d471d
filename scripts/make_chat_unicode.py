#!/usr/bin/env python3
"""Writes models/chat/unicode_data.inc: what Python's str says of code points.

Chat templates are run as Python runs them: str.upper, str.lower, str.title and repr. The tables are
those of the Unicode version of the Python that runs this script.
"""
import sys
import unicodedata
from pathlib import Path

OUT = Path(__file__).resolve().parent.parent / "models/chat/unicode_data.inc"
CODES = [c for c in range(0x80, 0x110000) if not 0xD800 <= c <= 0xDFFF]


def lines(items, per_line):
    return "".join(
        "    " + " ".join(items[i : i + per_line]) + "\n" for i in range(0, len(items), per_line)
    )


def printable():
    ranges = []
    for c in CODES:
        if not chr(c).isprintable():
            continue
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    items = [f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges]
    return f"constexpr CodeRange kPrintable[] = {{\n{lines(items, 5)}}};\n"


def case_table(name, change):
    ranges, special = [], []
    for c in CODES:
        to = change(chr(c))
        if to == chr(c):
            continue
        if len(to) > 1:
            special.append((c, to))
            continue
        delta = ord(to) - c
        last = ranges[-1] if ranges else None
        if last and last[3] == delta and (
            (last[0] == last[1] and c - last[1] <= 2) or c - last[1] == last[2]
        ):
            last[2] = c - last[1]
            last[1] = c
        else:
            ranges.append([c, c, 1, delta])
    items = [f"{{0x{a:x}, 0x{b:x}, {s}, {d}}}," for a, b, s, d in ranges]
    text = f"constexpr CaseRange k{name}[] = {{\n{lines(items, 4)}}};\n"
    items = [
        f'{{0x{c:x}, "' + "".join(f"\\x{b:02x}" for b in to.encode()) + '"},' for c, to in special
    ]
    return text + f"constexpr SpecialCase kSpecial{name}[] = {{\n{lines(items, 3)}}};\n"


def main():
    text = f"// Written by scripts/make_chat_unicode.py from Unicode {unicodedata.unidata_version}.\n"
    text += printable()
    text += case_table("Upper", str.upper)
    text += case_table("Lower", str.lower)
    text += case_table("Title", str.title)
    OUT.write_text(text)
    print(f"{OUT}: {len(text)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
