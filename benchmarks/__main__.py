"""Runs the benchmarks, prints the table and writes it down."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import typer

from benchmarks import forks, memory, steps, streaming  # noqa: F401  (they register themselves)
from benchmarks.harness import known
from benchmarks.report import machine, save, show

HERE = Path(__file__).parent


def main(
    only: Annotated[list[str] | None, typer.Option(help="Names of those to run; by default all.")] = None,
    runs: Annotated[int, typer.Option(help="Interleaved runs of each.")] = 5,
    check: Annotated[bool, typer.Option(help="Fail if a bar is missed.")] = False,
    write: Annotated[bool, typer.Option(help="Write the JSON and the table in the docs.")] = True,
) -> None:
    """Measures unspool against transformers, in this process, as ratios."""
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = []
    for name, work in known().items():
        if name not in (only or known()):
            continue
        for row in work.run(runs):
            rows.append(row)
            print(f"{row.work}: {row.value:.3f}", flush=True)
    show(rows)
    if write:
        save(rows, machine(), HERE, HERE.parent / "docs" / "performance.md")
    if check and any(row.met is False for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
