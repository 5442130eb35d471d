#!/usr/bin/env python3
"""Writes models/tokenizer/unicode_tables_data.inc and models/tokenizer/unicode_nfc_data.inc from Unicode 16, the version
of the engine that tokenizers are run with, whatever version Python itself carries:

    pip install unicodedata2==16.0.0 fonttools==4.55.3 regex==2024.11.6
"""
import pathlib
import sys

import regex
import unicodedata2 as unicode
from fontTools.unicodedata import Scripts, script_name

assert unicode.unidata_version == "16.0.0" and "Scripts-16.0.0" in open(Scripts.__file__).read()
ROOT = pathlib.Path(__file__).parent.parent
CODES = range(sys.maxunicode + 1)
CATEGORIES = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf "
              "Cs Co").split()
# What general categories and scripts do not give. `regex` may know a later version: only what is
# assigned in this one counts, and the pictographs that Unicode reserves before they are assigned.
PROPERTIES = ["Alphabetic", "Uppercase", "Lowercase", "White_Space", "Emoji", "Emoji_Presentation",
              "Emoji_Modifier", "Emoji_Modifier_Base", "Emoji_Component", "Extended_Pictographic"]
HANGUL = range(0xAC00, 0xD7A4)  # by arithmetic


def number(value):
    return str(value) if value < 256 else f"{value:#x}"


def lines_of(items):
    lines, line = [], ""
    for item in items:
        if len(line) + len(item) > 100:
            lines.append(line)
            line = ""
        line += item
    return "\n".join(lines + [line])


def rows(entries):
    return lines_of("{" + ",".join(number(v) for v in entry) + "}," for entry in entries)


def runs(value_of):
    """(first code point, value) where the value changes."""
    out, last = [], None
    for code in CODES:
        value = value_of(code)
        if value != last:
            out.append((code, value))
            last = value
    return out


def ranges(name):
    matches = regex.compile(rf"\p{{{name}}}").match
    pictograph = name == "Extended_Pictographic"
    out = []
    for code in CODES:
        if 0xD800 <= code <= 0xDFFF or not matches(chr(code)):
            continue
        if not pictograph and unicode.category(chr(code)) == "Cn":
            continue
        if out and out[-1][1] == code - 1:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def folded(code):
    """Full case folding; the Python string method follows Python's own version of Unicode."""
    assert unicode.category(chr(code)) != "Cn"
    return [ord(c) for c in regex_fold(chr(code))]


def regex_fold(text):
    # Letters newer than Python's tables have one lower-case letter each, as all since Unicode 8.
    if unicode.category(text) == "Lu" and not text.isalpha():
        return chr(NEW_PAIRS[ord(text)])
    return text.casefold()


# Upper to lower case, of letters that came in Unicode 15 and 16.
NEW_PAIRS = {0x1C89: 0x1C8A, 0xA7CB: 0x264, 0xA7CC: 0xA7CD, 0xA7DA: 0xA7DB, 0xA7DC: 0x19B,
             **{0x10D50 + i: 0x10D70 + i for i in range(22)}}


def tables():
    scripts = sorted(set(Scripts.VALUES))
    folds, multiple = [], []
    for code in CODES:
        if 0xD800 <= code <= 0xDFFF or unicode.category(chr(code)) == "Cn":
            continue
        to = folded(code)
        if len(to) > 1:
            multiple.append((code, *to, *[0] * (3 - len(to))))
        elif to[0] != code:
            folds.append((code, to[0]))
    out = f"""// Written by scripts/make_unicode_tables.py from Unicode {unicode.unidata_version}. clang-format off
constexpr std::string_view kCategoryNames[] = {{
{lines_of(f'"{name}",' for name in CATEGORIES)}
}};
constexpr Run kCategoryRuns[] = {{
{rows(runs(lambda code: CATEGORIES.index(unicode.category(chr(code)))))}
}};
constexpr ScriptName kScriptNames[] = {{
{lines_of(f'{{"{short}","{script_name(short)}"}},' for short in scripts)}
}};
constexpr Run kScriptRuns[] = {{
{rows((first, scripts.index(value)) for first, value in zip(Scripts.RANGES, Scripts.VALUES))}
}};
constexpr Fold kFolds[] = {{
{rows(folds)}
}};
constexpr MultipleFold kMultipleFolds[] = {{
{rows(multiple)}
}};
"""
    for name in PROPERTIES:
        out += f"constexpr CodeRange k{name.replace('_', '')}[] = {{\n{rows(ranges(name))}\n}};\n"
    out += "constexpr Property kProperties[] = {\n"
    out += lines_of(f'{{"{name}",k{name.replace("_", "")}}},' for name in PROPERTIES)
    return out + "\n};\n// clang-format on\n"


def nfc_data():
    singletons, pairs, classes = [], [], []
    for code in CODES:
        combining = unicode.combining(chr(code))
        if combining:
            last = classes[-1] if classes else None
            if last and last[1] == code - 1 and last[2] == combining:
                last[1] = code
            else:
                classes.append([code, code, combining])
        parts = unicode.decomposition(chr(code))
        if code in HANGUL or not parts or parts.startswith("<"):
            continue
        codes = [int(part, 16) for part in parts.split()]
        if len(codes) == 1:
            singletons.append((code, codes[0]))
            continue
        whole = unicode.normalize("NFD", chr(code))
        composes = unicode.normalize("NFC", whole) == chr(code)
        pairs.append((code, *codes, int(composes)))
    return f"""// Written by scripts/make_unicode_tables.py from Unicode {unicode.unidata_version}. clang-format off
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


(ROOT / "models/tokenizer/unicode_tables_data.inc").write_text(tables())
(ROOT / "models/tokenizer/unicode_nfc_data.inc").write_text(nfc_data())
