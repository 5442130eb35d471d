#!/usr/bin/env python3
"""Compares the figures that documents quote with the records that they come from.

    scripts/check_figures.py [--write] [FILE.md ...]     all documents without FILE; exit 1 if a figure is wrong

A comment above a table, a list or a paragraph says where each of its figures comes from, in their order:

    <!-- figures cuda_ranks.csv: {pp2048 @ d128,pp4096 @ d128}/{f16,int8}/2:times_one -->

An item is KEY/KEY:COLUMN, the row of the record (in docs/benchmarks) that has each KEY in one of its cells. Braces
expand as in a shell, also {0..3}; items are separated by ; or a new line. One row must match, and its number, rounded
as the document writes it, must stand there.

- Keys: a cell, with * and ? as in a shell; column=cell; a|b; #TEXT, a section that begins with comment lines (of JSON
  lines, with an object that has "card") with that text. In JSON every object is a row, and has the fields of objects inside it as outer.inner; keys may
  also be texts of objects around it, and the end of its path (results.0).
- COLUMN may compute with columns of the row, us / cublas_us, or be several, first|second. RECORD!KEYS:COLUMN takes
  another record.
- In a larger expression a query stands in brackets: [f16:us] / [int8:us], and several rows in min[...], max[...],
  median[...], mean[...], first[...], last[...].
- ITEM % takes 100 times the number, ITEM ~100 rounds to hundreds.
- A number by itself must stand as it is; - leaves one out that is no result, - 5 leaves out five.

Figures are all numbers of the block, but for those in a table's header and first column, in code, in links' targets,
in dates, and beside letters (7B, INT4, pp512); `figures RECORD, first column too:` takes that as well. The block ends
with an empty line; where the comment stands inside an item of a list, with the item. --write puts the numbers of the
records into the documents.
"""

import csv
import decimal
import fnmatch
import functools
import json
import pathlib
import re
import statistics
import sys
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs/benchmarks"
COMMENT = re.compile(r"^( *)<!-- figures(?: ([\w.]+))?(, first column too)?:\s*(.*?)\s*-->\n+", re.M | re.S)
TEXT_END, ITEM_END = re.compile(r"\n *\n|\n *<!-- "), re.compile(r"\n *\n|\n *<!-- |\n *- ")
HEADER, FIRST_CELL = re.compile(r"\A.*\n.*"), re.compile(r"^ *\|[^|]*", re.M)
NO_FIGURES = re.compile(r"`[^`]*`|\]\([^)]*\)|\b\d{4}-\d\d-\d\d\b|https?://\S+")
NUMBER = re.compile(
    r"(?:(?<=[\s(|])[+-]|(?<![\w.,^-]))(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e-?\d+)?(?![\w^])(?!-[A-Za-z])")
IN_RECORD = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
COLUMN_NAME = r"(?<![\w.])(?!abs\b)[A-Za-z_][\w.]*"
QUERY = re.compile(r"(?<!\w)(min|max|median|mean|first|last)?\[([^\]]*)\]")
AGGREGATES = {"min": min, "max": max, "median": statistics.median, "mean": statistics.fmean,
              "first": lambda found: found[0], "last": lambda found: found[-1]}


class Wrong(Exception):
    """A figure, or an annotation, that does not hold; the text says how."""


class Row(typing.NamedTuple):
    cells: dict
    section: str = ""  # of a CSV: its comment lines; of JSON lines: the object with "card" above
    around: frozenset = frozenset()  # of JSON: the ends of the path, and the texts of objects around it


def numbers(cell):
    """The numbers of a cell, as a list."""
    if isinstance(cell, list):
        return [x for item in cell for x in numbers(item)]
    if isinstance(cell, (int, float)):
        return [float(cell)]
    return [float(x) for x in IN_RECORD.findall(cell.replace(",", ""))] if isinstance(cell, str) else []


def is_number(text):
    return IN_RECORD.fullmatch(text.strip()) is not None


def is_figure(text):
    return is_number(text.replace(",", "").lstrip("+"))


def rows_of_csv(text):
    rows, header, section, in_comment = [], [], "", False
    for line in text.splitlines():
        if line.startswith("#"):
            section = section + line if in_comment else line
            in_comment = True
        elif cells := next(csv.reader([line]), []):
            if not header or (in_comment and not any(is_number(cell) for cell in cells)):
                header = cells
            else:
                rows.append(Row(dict(zip(header, cells)), section))
            in_comment = False
    return rows


def flat(node):
    """The fields of an object and of the objects inside, as outer.inner."""
    fields = {}
    for name, value in node.items():
        if isinstance(value, dict):
            fields.update({f"{name}.{inner}": x for inner, x in flat(value).items()})
        else:
            fields[name] = value
    return fields


def rows_of_json(node, path=(), texts=frozenset()):
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    rows = []
    if isinstance(node, dict):
        ends = {".".join(path[i:]) for i in range(len(path))} | set(path)
        rows = [Row(flat(node), around=texts | ends)]
        texts = texts | {x for x in node.values() if isinstance(x, str)}
    return rows + [row for name, child in children for row in rows_of_json(child, (*path, str(name)), texts)]


def rows_of_jsonl(text):
    rows, section = [], ""
    for line in text.splitlines():
        node = json.loads(line)
        section = line if "card" in node else section
        rows.append(Row(flat(node), section))
    return rows


def rows_of(name, known={}):
    if name not in known:
        path = RECORDS / name
        if not path.is_file():
            raise Wrong(f"there is no record {name}")
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            known[name] = rows_of_jsonl(text)
        else:
            known[name] = rows_of_json(json.loads(text)) if path.suffix == ".json" else rows_of_csv(text)
    return known[name]


def matches(row, key):
    if key.startswith("#"):
        return key[1:] in row.section
    column, _, value = key.partition("=")
    cells = [row.cells.get(column)] if value else [*row.cells.values(), *row.around]
    return any(fnmatch.fnmatchcase(str(cell), one) for cell in cells for one in (value or key).split("|"))


def column_of(row, column):
    """The numbers of a column, or of an expression of columns; none where the row has no such column."""
    if "|" in column:
        return [x for one in column.split("|") for x in column_of(row, one.strip())]
    if column in row.cells:
        return numbers(row.cells[column])
    names = re.findall(COLUMN_NAME, column)
    values = {name: numbers(row.cells.get(name)) for name in names}
    if not names or any(len(x) != 1 for x in values.values()):
        return []
    return [compute(re.sub(COLUMN_NAME, lambda m: repr(values[m.group()][0]), column))]


def compute(expression):
    if not re.fullmatch(r"(?:[-+*/(), .\d]|e[-+]?\d|\babs\b)*", expression):
        raise Wrong(f"not understood: {expression}")
    return float(eval(expression, {"__builtins__": {}}, {"abs": abs}))  # digits and operators alone


@functools.cache
def look_up(query, record, aggregate):
    *head, column = [part.strip() for part in query.rsplit(":", 1)]
    keys = head[0] if head else ""
    if "!" in keys:
        record, keys = [part.strip() for part in keys.split("!", 1)]
    if record is None:
        raise Wrong(f"no record is named for {query}")
    wanted = [key.strip() for key in keys.split("/") if key.strip()]
    found = [x for row in rows_of(record) if all(matches(row, key) for key in wanted)
             for x in column_of(row, column)]
    if not found or (aggregate is None and len(found) > 1):
        raise Wrong(f"{query}: {len(found)} numbers in {record}")
    return AGGREGATES[aggregate](found) if aggregate else found[0]


def value_of(item, record):
    if "[" not in item:
        return look_up(item, record, None)
    return compute(QUERY.sub(lambda m: repr(look_up(m[2], record, m[1])), item))


def expand(item):
    """a{b,c} as [ab, ac]; {0..3} counts."""
    if left_out := re.fullmatch(r"- (\d+)", item):
        return ["-"] * int(left_out[1])
    match = re.search(r"\{([^{}]*)\}", item)
    if not match:
        return [item]
    count = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    parts = [str(i) for i in range(int(count[1]), int(count[2]) + 1)] if count else match[1].split(",")
    # The first brace of the item varies slowest, as in a shell.
    return [text for part in parts for text in expand(item[: match.start()] + part + item[match.end():])]


def as_written(value, written):
    """The number in the form of the document: as many decimals, its separators and its sign."""
    mantissa, _, exponent = written.partition("e")
    decimals = len(mantissa.partition(".")[2])
    scaled = decimal.Decimal(f"{value:.12g}").scaleb(-int(exponent or 0))
    digits = scaled.quantize(decimal.Decimal(1).scaleb(-decimals), decimal.ROUND_HALF_EVEN)
    sign = "+" if written[0] == "+" else ""
    comma = "," if "," in written or (digits >= 10000 and "," in mantissa) else ""
    return format(digits, f"{sign}{comma}f") + (f"e{exponent}" if exponent else "")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


class Figure(typing.NamedTuple):
    start: int  # in the document
    end: int
    written: str
    item: str  # where it comes from
    record: str


def figures_of(text):
    """Every figure that is annotated; Wrong where an annotation has more or fewer items than its block has figures."""
    figures = []
    if len(COMMENT.findall(text)) != len(re.findall(r"^ *<!-- figures", text, re.M)):
        raise Wrong("a comment of figures is not understood: <!-- figures RECORD: ITEMS -->, in lines of its own")
    for comment in COMMENT.finditer(text):
        where = f"line {text.count(chr(10), 0, comment.start()) + 1}"
        indent, record, all_columns, items_text = comment.groups()
        block = (ITEM_END if indent else TEXT_END).split(text[comment.end():], maxsplit=1)[0]
        block = NO_FIGURES.sub(blank, block)
        if block.lstrip().startswith("|"):
            block = HEADER.sub(blank, block)
            block = block if all_columns else FIRST_CELL.sub(blank, block)
        spots = [(comment.end() + m.start(), comment.end() + m.end(), m.group()) for m in NUMBER.finditer(block)]
        items = [one.strip() for item in re.split(r"[;\n]", items_text) if item.strip()
                 for one in expand(item.strip())]
        if len(items) != len(spots):
            raise Wrong(f"{where}: {len(items)} items for {len(spots)} figures: "
                        + ", ".join(spot[2] for spot in spots))
        figures += [Figure(*spot, item, record) for spot, item in zip(spots, items)]
    return figures


def right_text(figure):
    """What should stand in the place of a figure."""
    item = figure.item
    if is_figure(item):
        return item
    item, _, unit = item.partition("~")
    item = item.strip()
    factor = 100 if item.endswith("%") else 1
    value = factor * value_of(item.rstrip("% "), figure.record)
    if unit:
        value = float((decimal.Decimal(f"{value:.12g}") / int(unit)).quantize(1, decimal.ROUND_HALF_EVEN)) * int(unit)
    return as_written(value, figure.written)


def check(text, write=False):
    """(figures checked, what is wrong, the text with the numbers of the records)"""
    wrong, n_checked = [], 0
    try:
        figures = figures_of(text)
    except Wrong as error:
        return 0, [str(error)], text
    for figure in reversed(figures):
        if figure.item == "-":
            continue
        n_checked += 1
        try:
            right = right_text(figure)
        except Wrong as error:
            right = str(error)
        if right != figure.written:
            line = text.count("\n", 0, figure.start) + 1
            wrong.insert(0, f"line {line}: {figure.written}, but {figure.item}: {right}")
            if write and is_figure(right):
                text = text[: figure.start] + right + text[figure.end:]
    return n_checked, wrong, text


def documents():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main():
    arguments = [x for x in sys.argv[1:] if x != "--write"]
    write = len(arguments) < len(sys.argv) - 1
    n_checked, n_wrong = 0, 0
    for path in [pathlib.Path(x).resolve() for x in arguments] or documents():
        old = path.read_text(encoding="utf-8")
        n, wrong, text = check(old, write)
        n_checked += n
        n_wrong += len(wrong)
        for line in wrong:
            print(f"{path.relative_to(ROOT)}, {line}", file=sys.stderr)
        if text != old:
            path.write_text(text, encoding="utf-8")
    print(f"{n_checked} figures compared with their records, {n_wrong} wrong")
    return 1 if n_wrong or not n_checked else 0


if __name__ == "__main__":
    sys.exit(main())
