"""What `benchmarks/packed.py` makes of its times."""

from __future__ import annotations

from typing import Any

import packed
import pytest
import torch
from packed import find_limits, sum_rows

RECORDS: list[dict[str, Any]] = [
    {"shape": "a", "rows": 1, "few_us": 2.0},
    {"shape": "b", "rows": 1, "few_us": 3.0},
    {"shape": "a", "rows": 32, "few_us": 4.0, "tiles_us": 5.0, "out_us": 9.0},
    {"shape": "b", "rows": 32, "few_us": 6.0, "tiles_us": 7.0, "out_us": 9.0},
    {"shape": "a", "rows": 256, "tiles_us": 8.0, "out_us": 9.0},
    {"shape": "b", "rows": 256, "tiles_us": 9.5, "out_us": 9.0},
    {"shape": "a", "rows": 512, "tiles_us": 12.0, "out_us": None},
    {"shape": "b", "rows": 512, "tiles_us": 12.0, "out_us": 9.0},
    {"shape": "a", "rows": 1024, "tiles_us": 30.0, "out_us": 20.0},
    {"shape": "b", "rows": 1024, "tiles_us": 10.0, "out_us": 19.0},
]


def test_ways_are_compared_where_all_shapes_have_them() -> None:
    assert sum_rows(RECORDS) == {
        1: {"few": 5.0},
        32: {"few": 10.0, "tiles": 12.0, "out": 18.0},
        256: {"tiles": 17.5, "out": 18.0},
        512: {"tiles": 24.0},
        1024: {"tiles": 40.0, "out": 39.0},
    }
    assert find_limits(RECORDS) == {"few": 32, "tiles": 512, "out": 1024}


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["packed.py"])
    with pytest.raises(SystemExit, match="needs a CUDA GPU"):
        packed.main()
