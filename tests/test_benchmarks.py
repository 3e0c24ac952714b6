"""The benchmarks' own arithmetic, on works that only pretend."""

from __future__ import annotations

import io

import pytest
from benchmarks.harness import Row, interleaved, ratio
from benchmarks.report import BEGIN, END, markdown, put_between, show
from rich.console import Console


def test_works_run_in_turn_and_the_first_turn_does_not_count():
    calls = []

    def work(name):
        def run():
            calls.append(name)
            return {"whole": float(len(calls))}

        return run

    first, second = interleaved([work("a"), work("b")], runs=2)
    assert "".join(calls) == "baabba"
    assert first == [{"whole": 3.0}, {"whole": 6.0}]
    assert second == [{"whole": 4.0}, {"whole": 5.0}]


def test_a_ratio_is_that_of_the_medians_with_the_quartiles_of_single_runs():
    row = ratio("work", ours=[1.0, 2.0, 9.0], theirs=[2.0, 4.0, 6.0], bar=0.4)
    assert (row.value, row.runs, row.met) == (0.5, 3, False)
    assert row.spread == (0.5, 1.5)


@pytest.mark.parametrize(("value", "bar", "met"), [(0.9, 1.0, True), (1.1, 1.0, False), (1.1, None, None)])
def test_a_bar_is_met_or_not_or_there_is_none(value, bar, met):
    assert Row("work", value, bar).met is met


def test_the_table_goes_between_the_markers_and_nothing_else_changes():
    about = {"python": "3", "torch": "2", "transformers": "5", "date": "today", "processor": "p", "cores": 2}
    page = put_between(f"before {BEGIN} old {END} after", markdown([Row("work", 0.5, 1.0)], about))
    assert page.startswith("before ")
    assert page.endswith(" after")
    assert "| work | 0.500 |" in page
    assert "old" not in page
    with pytest.raises(ValueError, match="bench:start"):
        put_between("no markers", "")


def test_the_table_is_printed_with_its_bars():
    file = io.StringIO()
    show([Row("some work", 0.5, 1.0)], Console(file=file, width=100))
    assert "some work" in file.getvalue()
    assert "yes" in file.getvalue()
