"""What is recorded of an answer, and the folder that holds it: `tests/golden/NAME`.

Needs torch and the formulas alone, of any version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

EMBEDDING = -1
"""Stands for the id of a position that takes a row of the tower."""
NUM_VALUES = 4
"""Values that are kept of a row."""
_OWN_FILES = ("numbers.json", "tensors.json", "differences.json", "scales.json")
_CODE = "raise RuntimeError('code of a checkpoint was run')\n"


@dataclass(frozen=True)
class Record:
    """What one case gave.

    ids: the prompt, with `EMBEDDING` where a row goes. pixels: number, sum and sum of squares of all values that go
    into the tower, without padding that the model ignores. rows: for each picture the number of its rows, and the first
    values of the first row, of the one a third of the way, and of the last. tokens: the greedy answer, without
    the token that ends it.
    """

    ids: list[int]
    pixels: list[float]
    rows: list[tuple[int, list[list[float]]]]
    tokens: list[int]


def note_pixels(tensors: Iterable[torch.Tensor]) -> list[float]:
    """Return `Record.pixels` of the tower's inputs."""
    values = [tensor.double().flatten() for tensor in tensors]
    flat = torch.cat(values) if values else torch.zeros(0, dtype=torch.float64)
    return [float(flat.numel()), float(flat.sum()), float(flat.square().sum())]


def note_rows(rows: torch.Tensor) -> tuple[int, list[list[float]]]:
    """Return what `Record.rows` holds of one picture's rows [R, hidden], in the order of the prompt."""
    places = (0, len(rows) // 3, len(rows) - 1)
    return len(rows), [[round(float(value), 6) for value in rows[place, :NUM_VALUES]] for place in places]


def write(
    folder: Path, *, tensors: Mapping[str, Sequence[int]], origin: Mapping[str, Any], records: Mapping[str, Record]
) -> None:
    """Write `tensors.json` and `numbers.json`. `origin`: where the published code is from, and what it ran with."""
    lines = [f"{json.dumps(name)}: {json.dumps(list(shape))}" for name, shape in tensors.items()]
    (folder / "tensors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    cases = [f"{json.dumps(name)}: {json.dumps(asdict(record))}" for name, record in records.items()]
    text = f'{{\n"origin": {json.dumps(origin, indent=1)},\n"cases": {{\n' + ",\n".join(cases) + "\n}\n}\n"
    (folder / "numbers.json").write_text(text)


def read(folder: Path) -> dict[str, Record]:
    """Return the records of a folder, by the names of their cases."""
    cases = json.loads((folder / "numbers.json").read_text())["cases"]
    return {
        name: Record(**{**case, "rows": [(number, values) for number, values in case["rows"]]})
        for name, case in cases.items()
    }


def read_origin(folder: Path) -> dict[str, Any]:
    """Return where the published code of a folder is from."""
    origin: dict[str, Any] = json.loads((folder / "numbers.json").read_text())["origin"]
    return origin


def read_scales(folder: Path) -> dict[str, float]:
    """Return the factors of tensors that have another size than their formula, by name."""
    file = folder / "scales.json"
    scales: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    return scales


def write_checkpoint(folder: Path, path: Path) -> Path:
    """Write the checkpoint of a folder to `path`: its files, its tensors by their formula, and for the code that its
    config.json names files that must not be run."""
    from golden.formula import fill
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    for source in folder.iterdir():
        if source.is_file() and source.name not in _OWN_FILES:
            (path / source.name).write_bytes(source.read_bytes())
    shapes = json.loads((folder / "tensors.json").read_text())
    scales = read_scales(folder)
    tensors = {name: fill(name, shape) * scales.get(name, 1.0) for name, shape in shapes.items()}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    auto_map = json.loads((path / "config.json").read_text()).get("auto_map", {})
    for target in auto_map.values():
        module = target.rpartition("--")[2].partition(".")[0]
        (path / f"{module}.py").write_text(_CODE)
    return path
