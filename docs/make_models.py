"""Writes the page of models: what is proved of each class, by running it beside transformers' own generate().

`make models` runs it. Nothing on the page is typed by hand.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

PAGE = HERE / "models.md"
BEGIN = """# Models

What is streamed is compared with what the class's own `generate()` of transformers makes of the same inputs and the
same seed: ids and codes exactly, sound and other floats to 1e-4. The tables are made by `make models`, from tiny models
with random weights.
"""
NOTES = """
*padded*: a batch whose rows differ in length. *outputs*: scores, logits and hidden states of every step. *its own
fails*: the class's own `generate()` raises, so there is nothing to compare. *differs on purpose*: see
[differences](differences.md).
"""


def own_rows() -> Iterable[list[str]]:
    """A row for each class with a `generate` of its own."""
    from test_model_kinds import OWN, blank
    from unspool.families.refused import refusal
    from zoo.kinds import MAKERS, METHODS, UNPROVED, here, prove

    proved = {name.split()[0] for name in MAKERS}
    for name in sorted({*MAKERS, *OWN} - {name for name in proved if name not in MAKERS}):
        if name in MAKERS and here(name):
            yield [f"`{name}`", *(prove(name, method) for method in METHODS)]
        elif name in UNPROVED:
            yield [f"`{name}`", UNPROVED[name], *[""] * (len(METHODS) - 1)]
        elif name not in MAKERS and (reason := refusal(blank(name))):
            yield [f"`{name}`", "refused: " + reason.split(" ", 1)[1].split(".")[0], *[""] * (len(METHODS) - 1)]


def common_rows() -> Iterable[list[str]]:
    """A row for each decoder-only or encoder-decoder class of text that goes by the common `generate`."""
    from zoo.common import METHODS, NAMES, prove

    for name in NAMES:
        yield [f"`{name}`", *(prove(name, method) for method in METHODS)]


def table(heads: Iterable[str], rows: Iterable[list[str]]) -> str:
    """A table in Markdown."""
    names = list(heads)
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def page() -> str:
    """The page."""
    import transformers

    from zoo import common
    from zoo.kinds import METHODS

    return "\n".join(
        [
            BEGIN,
            f"Made with transformers {transformers.__version__}.\n",
            "## Classes with a `generate` of their own\n",
            table(["class", *METHODS], own_rows()),
            NOTES,
            "## Classes that go by the common `generate`\n",
            table(["class", *common.METHODS], common_rows()),
            "\n*not built*: no tiny model can be made of its config by the names of its sizes alone.\n",
        ]
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    PAGE.write_text(page())
