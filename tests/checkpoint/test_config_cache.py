from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from seesay.checkpoint.config_cache import keep, make_key, read_cached


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "seesay"


def test_a_value_comes_back_under_its_key(folder: Path) -> None:
    key = make_key("config", [], [b"a"])
    assert read_cached(key) is None
    keep(key, {"a": [1, None, "é"]})
    assert read_cached(key) == {"a": [1, None, "é"]}
    keep(key, {"a": 2})
    assert read_cached(key) == {"a": 2}
    assert [path.name for path in folder.iterdir()] == [f"{key}.json"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_key_follows_all_that_the_value_was_made_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "package_of_this_test.py"
    package.write_text("raise AssertionError('it is not imported')")
    name = package.stem
    keys = [make_key(kind, [], []) for kind in "ab"] + [make_key("a", [of], []) for of in (name, "no_such_package")]
    keys += [make_key("a", [], sources) for sources in ([b"12"], [b"1", b"2"], [b"", b"12"], [b"12", b""])]
    assert len(set(keys)) == len(keys)
    os.utime(package, ns=(1, 1))
    assert make_key("a", [name], []) not in keys, "another installation of the same version"


def test_damaged_files_are_not_read(folder: Path) -> None:
    keep("key", {"a": 1})
    for damaged in (b"", b'{"a": ', b"[1]", b"\xff", b"[" * 100_000):
        (folder / "key.json").write_bytes(damaged)
        assert read_cached("key") is None
    keep("key", {"a": 1})
    assert read_cached("key") == {"a": 1}


def test_nothing_is_kept_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", Path("/proc/no/such/folder")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(path))
        keep("key", {"a": 1})
        assert read_cached("key") is None
    assert not (tmp_path / "seesay").exists()


def test_a_value_that_is_not_json_leaves_no_file_behind(folder: Path) -> None:
    with pytest.raises(TypeError):
        keep("key", {"a": object()})
    assert list(folder.iterdir()) == []


def test_the_oldest_files_are_deleted(folder: Path) -> None:
    for number in range(6):
        keep(str(number), {"a": "x" * 1000}, max_bytes=3500)
        os.utime(folder / f"{number}.json", ns=(number, number))
    assert sorted(path.name for path in folder.iterdir()) == ["3.json", "4.json", "5.json"]
