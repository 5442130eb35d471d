#!/usr/bin/env python3
"""Writes tests/fixtures/jinja.json: what jinja2, set up as transformers sets it up, makes of small
templates, one construct each. Needs jinja2.

A case has "text", or "error" where jinja2 raises.
"""
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2.nodes import CallBlock

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/fixtures/jinja.json"

MESSAGES = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "hello World\n"},
    {"role": "assistant", "content": "Grüße, 世界! 😀", "tool_calls": []},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]},
]
VARIABLES = {
    "s": "Hello, World",
    "u": "Ünïcödé ß 世界 😀",
    "blank": "\u3000 \t x y \u00a0\n",
    "q": "it's \"quoted\" \\ \n\t\u0001\u00ad\u200b\x7f",
    "e": "",
    "i": 7,
    "z": 0,
    "neg": -3,
    "f": 2.5,
    "t": True,
    "n": None,
    "l": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "nested": [[1, [2, 3]], {"a": {"b": [4, 5]}}],
    "d": {"b": 1, "a": "x", "items": 5, "B": None},
    "people": [
        {"name": "Bo", "age": 30, "tags": ["x"]},
        {"name": "al", "age": 4, "tags": []},
        {"name": "Cy", "age": 30},
    ],
    "m": MESSAGES[1],
}


def environment():
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

        def _run(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


VALUES = ["s", "u", "e", "i", "z", "neg", "f", "t", "n", "l", "d", "missing", "(1, 'a')", "range(3)"]

EXPRESSIONS = [f"{v}" for v in VALUES] + [f"[{v}]" for v in VALUES]
EXPRESSIONS += [f"{v} is {t}" for v in VALUES for t in (
    "defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping",
    "sequence", "iterable", "true", "false", "callable")]
EXPRESSIONS += [f"{a} {op} {b}" for op in ("+", "-", "*", "/", "//", "%", "**")
                for a in ("7", "-7", "2.5", "true", "0") for b in ("3", "-3", "0.5", "false", "2")]
EXPRESSIONS += [f"{a} {op} {b}" for op in ("==", "!=", "<", "<=", ">", ">=", "in")
                for a, b in (("1", "1.0"), ("'a'", "'b'"), ("'a'", "1"), ("[1, 2]", "[1, 3]"),
                             ("(1,)", "[1]"), ("none", "none"), ("missing", "missing"),
                             ("true", "1"), ("'a'", "'cab'"), ("'a'", "d"), ("2", "l"),
                             ("'x'", "missing"), ("1", "none"), ("[1]", "d"))]
EXPRESSIONS += [f"{v}|{g}" for v in VALUES for g in (
    "length", "list", "string", "default('D')", "default('D', true)", "first", "last", "tojson",
    "int", "float", "upper", "trim", "join('-')", "reverse|list", "items|list", "abs")]
EXPRESSIONS += [f"{v}[{i}]" for v in ("s", "u", "l", "(1, 2, 3)", "'ab'", "e")
                for i in ("0", "-1", "5", "-9", "1:", ":1", ":-1", "-2:", "::-1", "::2", "1:3",
                          "-3:-1", "5:", ":0", "3:1", "2:0:-1", "::-2", "none:none", "'x'")]
LINES = (pathlib.Path(__file__).resolve().parent / "jinja_expressions.txt").read_text("utf-8")
EXPRESSIONS += [line for line in LINES.split("\n") if line]

TEMPLATES = [t for t in (pathlib.Path(__file__).resolve().parent / "jinja_templates.txt")
             .read_text("utf-8").split("\n----\n") if t]


# What jinja2 can do and minfer refuses by name.
REFUSED = [
    "{{ " + e + " }}"
    for e in ("-7 ** 0.5", "u|int", "u|float", "1 .real", "12.real", "raise_exception",
              "s.__class__", "s['__class__']", "namespace(_x=1)['_x']", "'%.2f' % 1.5")
] + [
    "{% for x in l recursive %}{{ x }}{% endfor %}",
    "{% print 1 %}",
    "{% with x = 1 %}{{ x }}{% endwith %}",
    "{% for x in l %}{{ loop }}{% endfor %}",
    "{% set ns = namespace() %}{% for x in l %}{% macro m() %}[{{ x }}]{% endmacro %}"
    "{% set ns.m = m %}{% endfor %}{{ ns.m() }}",
]


def main():
    env = environment()
    cases = []
    for source in ["{{ " + e + " }}" for e in EXPRESSIONS] + TEMPLATES:
        case = {"template": source}
        try:
            case["text"] = env.from_string(source).render(
                messages=MESSAGES, tools=None, documents=None, add_generation_prompt=True,
                bos_token="<s>", eos_token="</s>", **VARIABLES)
        except Exception as e:  # whatever it is: minfer has to refuse as well
            case["error"] = f"{type(e).__name__}: {e}"
        if source in REFUSED:
            case = {"template": source, "refused": True}
        if " object at 0x" not in case.get("text", "") and " of <" not in case.get("text", ""):
            cases.append(case)
    data = {"messages": MESSAGES, "variables": VARIABLES, "cases": cases}
    OUT.write_text(json.dumps(data, ensure_ascii=True, indent=0) + "\n")
    print(f"{len(cases)} cases, {sum('error' in c for c in cases)} of them errors")


if __name__ == "__main__":
    main()
