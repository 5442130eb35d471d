#!/usr/bin/env python3
"""scripts/check_figures.py: every figure that documents annotate stands in its record, and none may change.

Each digit of each annotated figure is changed in turn, in memory; a document with a changed digit has to fail.
"""
import pathlib
import random
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_figures  # noqa: E402
from compare import report  # noqa: E402


class Figures(unittest.TestCase):
    def test_documents_quote_their_records(self):
        n_checked = 0
        for path in check_figures.documents():
            n, wrong, _ = check_figures.check(path.read_text(encoding="utf-8"))
            self.assertEqual(wrong, [], path)
            n_checked += n
        self.assertGreater(n_checked, 1000)

    def test_a_changed_digit_is_found(self):
        n_changed = 0
        for path in check_figures.documents():
            for figure in check_figures.figures_of(path.read_text(encoding="utf-8")):
                if figure.item == "-":
                    continue
                right = check_figures.right_text(figure)
                for i, digit in enumerate(figure.written):
                    for other in {str((int(digit) + 1) % 10), "0"} - {digit} if digit.isdigit() else ():
                        changed = figure.written[:i] + other + figure.written[i + 1:]
                        n_changed += 1
                        self.assertNotEqual(check_figures.right_text(figure._replace(written=changed)), changed,
                                            f"{path}: {figure.written}, {figure.item}")
                self.assertEqual(right, figure.written)
        self.assertGreater(n_changed, 3000)

    def test_a_document_with_a_changed_digit_fails(self):
        text = "<!-- figures cuda_limits.csv: read GB?s:minfer -->\nReads reach 4591 GB/s.\n"
        self.assertEqual(check_figures.check(text)[:2], (1, []))
        changed = text.replace("4591 GB", "4592 GB")
        self.assertEqual(len(check_figures.check(changed)[1]), 1)
        self.assertEqual(check_figures.check(changed, write=True)[2], text)

    def test_annotations_that_do_not_hold(self):
        for annotation, message in ((" cuda_limits.csv: read GB?s:minfer; 2", "2 items for 1 figures"),
                                    (" cuda_limits.csv: *:minfer", "7 numbers"),
                                    (" cuda_limits.csv: nothing:minfer", "0 numbers"),
                                    (" absent.csv: read:minfer", "there is no record absent.csv"),
                                    (" a record: read GB?s:minfer", "not understood"),
                                    (": read GB?s:minfer", "no record is named"),
                                    (" cuda_limits.csv: [read GB?s:minfer] + x", "not understood")):
            wrong = check_figures.check(f"<!-- figures{annotation} -->\nReads reach 4591 GB/s.\n")[1]
            self.assertEqual(len(wrong), 1, annotation)
            self.assertIn(message, wrong[0])

    def test_rounding_and_forms(self):
        for value, written, right in ((0.945, "0.95", "0.94"), (7382.94, "7,400", "7,383"), (12345, "1,234", "12,345"),
                                      (0.035, "+0.036", "+0.035"), (0.00000871, "8.7e-6", "8.7e-6"),
                                      (-0.5, "-0.4", "-0.5")):
            self.assertEqual(check_figures.as_written(value, written), right)

    def test_the_page_of_a_comparison_quotes_its_records(self):
        random.seed(1)
        us = lambda: random.choice((random.uniform(1, 99), random.uniform(1e4, 1e6)))
        results = [dict(dict.fromkeys(report.COLUMNS), operation=operation, shape=shape, implementation=name, us=us(),
                        limit="copy", limit_share=random.random())
                   for operation, shape in (("silu", "8192 x 4096"), ("silu", "65536 x 8192"),
                                            ("route", "2048 x 128, 8 chosen"), ("attention_prefill", "512 x 32 x 128"))
                   for name in ("eager", "compile", "minfer")]
        models = [{"test": test, "implementation": name, "tokens_per_s": us(), "low": us(), "high": us()}
                  for test in ("pp512", "tg128 @ d128") for name in ("eager", "minfer")]
        record = dict(dict.fromkeys(("command", "cuda", "torch", "triton", "minfer"), ""), card="a card",
                      date="2026-11-26", limits={"read": 4e12, "copy": 3e12, "hgemm": 7e14}, results=results,
                      models=models, failures=[])
        with tempfile.TemporaryDirectory() as directory:
            with mock.patch.object(check_figures, "RECORDS", pathlib.Path(directory)):
                report.write(pathlib.Path(directory) / "of_a_test", record)
                text = (pathlib.Path(directory) / "of_a_test.md").read_text()
                self.assertEqual(check_figures.check(text)[:2], (4 * 3 + 4 + 4 * 2 + 4 * 3, []))


if __name__ == "__main__":
    unittest.main()
