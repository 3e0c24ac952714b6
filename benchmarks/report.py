"""The table, printed, kept as JSON, and put into the documentation."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Row

__all__ = ["machine", "markdown", "put_between", "save", "show"]

BEGIN, END = "<!-- bench:start -->", "<!-- bench:end -->"


def machine() -> dict[str, Any]:
    """What the figures were measured on and with."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else []
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "unspool")},
        "date": datetime.date.today().isoformat(),
    }


def _cells(row: Row) -> list[str]:
    bar = "" if row.bar is None else f"{row.bar:.2f}"
    met = {True: "yes", False: "no", None: ""}[row.met]
    spread = "" if math.isnan(row.spread[0]) else f"{row.spread[0]:.2f} to {row.spread[1]:.2f}"
    return [row.work, f"{row.value:.3f}", spread, bar, met, str(row.runs)]


HEADS = ["work", "ratio", "quartiles", "at most", "met", "runs"]


def show(rows: Sequence[Row], console: Console | None = None) -> None:
    """Prints the table."""
    table = Table(*HEADS)
    for row in rows:
        table.add_row(*_cells(row))
    (console or Console(width=140)).print(table)


def markdown(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """The table and the machine, as Markdown."""
    lines = [f"| {' | '.join(HEADS)} |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    versions = f"Python {about['python']}, torch {about['torch']}, transformers {about['transformers']}"
    lines += ["", f"Measured {about['date']} on {about['processor']}, {about['cores']} cores; {versions}."]
    return "\n".join(lines)


def put_between(page: str, text: str) -> str:
    """A page with the part between the markers replaced.

    Raises:
        ValueError: The page has no markers.
    """
    if BEGIN not in page or END not in page:
        raise ValueError(f"The page has no {BEGIN} and {END}.")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def save(rows: Sequence[Row], about: dict[str, Any], folder: Path, page: Path) -> None:
    """Writes the JSON, and the table into the page; rows measured before on the same machine and versions are kept."""
    file = folder / "results.json"
    kept = _kept(json.loads(file.read_text()), about) if file.exists() else {}
    kept |= {row.work: row for row in rows}
    told = [{**asdict(row), "spread": None if math.isnan(row.spread[0]) else row.spread} for row in kept.values()]
    file.write_text(json.dumps({"machine": about, "rows": told}, indent=2, allow_nan=False) + "\n")
    page.write_text(put_between(page.read_text(), markdown(list(kept.values()), about)))


def _kept(found: dict[str, Any], about: dict[str, Any]) -> dict[str, Row]:
    """The rows that were measured before, if all but the date is the same."""
    if any(found["machine"].get(name) != value for name, value in about.items() if name != "date"):
        return {}
    unknown = (math.nan, math.nan)
    return {row["work"]: Row(**{**row, "spread": tuple(row["spread"] or unknown)}) for row in found["rows"]}
