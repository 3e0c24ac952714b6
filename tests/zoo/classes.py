"""Every class of the installed transformers that generates, found in its source without importing it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import transformers

_CLASS = re.compile(r"^class (\w+)(?:\(([^)]*)\))?:(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_MODELS = Path(transformers.__file__).parent / "models"


@dataclass(frozen=True, slots=True)
class Source:
    """What the source says of one class: its bases, whether it defines `generate` or `forward`, and its module."""

    name: str
    bases: tuple[str, ...]
    generates: bool
    runs: bool
    module: str


@functools.cache
def sources() -> dict[str, Source]:
    """All classes of all model folders, by name."""
    found = {}
    for path in sorted(_MODELS.glob("*/*.py")):
        if path.name.startswith(("modeling_", "generation_")):
            module = f"transformers.models.{path.parent.name}.{path.stem}"
            for name, bases, body in _CLASS.findall(path.read_text(encoding="utf-8")):
                parents = tuple(base.strip().split(".")[-1] for base in bases.split(",") if base.strip())
                made = "    def generate(" in body, "    def forward(" in body
                found[name] = Source(name, parents, *made, module)
    return found


def lineage(name: str) -> list[Source]:
    """The class and all that it descends from, as far as the model folders hold them."""
    known, line, todo = sources(), [], [name]
    while todo:
        source = known.get(todo.pop(0))
        if source is not None and source not in line:
            line.append(source)
            todo += source.bases
    return line


def generators() -> dict[str, Source | None]:
    """Every class that can be built and generates: the source of its own `generate`; None for the common one."""
    found = {}
    for name, source in sources().items():
        line = lineage(name)
        mixed = any("GenerationMixin" in each.bases for each in line)
        own = next((each for each in line if each.generates), None)
        built = (own is not None or any(each.runs for each in line)) and not name.endswith(
            ("GenerationMixin", "PreTrainedModel")
        )
        if built and (mixed or own) and source.module.rsplit(".", 1)[1].startswith("modeling_"):
            found[name] = own
    return found
