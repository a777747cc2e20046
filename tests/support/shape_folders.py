"""Folders of checkpoints whose tensors have shapes and no numbers: large ones take next to no space on the disk."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SIZES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8, "BOOL": 1}

Shapes = dict[str, tuple[int, ...]]


def write_shapes(
    folder: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]
) -> Path:
    """Write a checkpoint of BF16 tensors, but for those whose type `dtypes` names; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, stop = dict[str, Any](), 0
    for name, shape in shapes.items():
        dtype = dtypes.get(name, "BF16")
        start, stop = stop, stop + math.prod(shape) * _SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
    written = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(written).to_bytes(8, "little") + written)
        file.truncate(8 + len(written) + stop)
    return folder
