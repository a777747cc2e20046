from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from seesay.system.user_folders import find_cache_folder, find_state_folder


@pytest.mark.parametrize(
    ("variable", "find", "default"),
    [
        ("XDG_CACHE_HOME", find_cache_folder, ".cache"),
        ("XDG_STATE_HOME", find_state_folder, ".local/state"),
    ],
)
def test_a_relative_folder_is_ignored(
    variable: str, find: Callable[[], Path], default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/of-this-test")
    for given, expected in (
        ("/elsewhere", "/elsewhere/seesay"),
        ("", f"/home/of-this-test/{default}/seesay"),
        ("relative", f"/home/of-this-test/{default}/seesay"),
        ("./relative", f"/home/of-this-test/{default}/seesay"),
        ("~/x", f"/home/of-this-test/{default}/seesay"),
    ):
        monkeypatch.setenv(variable, given)
        assert find() == Path(expected)
    monkeypatch.delenv(variable)
    assert find() == Path(f"/home/of-this-test/{default}/seesay")
