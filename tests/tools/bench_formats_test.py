#!/usr/bin/env python3
"""`minfer bench -o sql` is read by SQLite and `-o csv` by csv (and pandas where it is installed): bench_formats_test.py MINFER"""
import csv
import io
import pathlib
import sqlite3
import subprocess
import sys
import unittest

DEMO = pathlib.Path(__file__).resolve().parents[2] / "models/demo"


def bench(output):
    return subprocess.run([sys.argv[1], "bench", "-m", DEMO, "-p", "8", "-n", "2", "-r", "2", "--device", "cpu", "--quiet",
                           "-o", output], check=True, capture_output=True, text=True).stdout


class Formats(unittest.TestCase):
    def test_sql(self):
        database = sqlite3.connect(":memory:")
        database.executescript(bench("sql"))
        rows = database.execute('SELECT test, n_prompt, n_gen, avg_ts > 0, "limit" FROM test').fetchall()
        self.assertEqual([row[:4] for row in rows], [("pp8", 8, 0, 1), ("tg2", 0, 2, 1)])

    def test_csv(self):
        text = bench("csv")
        rows = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual([row["test"] for row in rows], ["pp8", "tg2"])
        self.assertTrue(all(None not in row and float(row["avg_ts"]) > 0 for row in rows))
        try:
            import pandas
        except ImportError:
            return
        self.assertEqual(list(pandas.read_csv(io.StringIO(text))["n_gen"]), [0, 2])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
