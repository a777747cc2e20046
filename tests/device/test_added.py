"""Devices that packages add: a package whose code or names are wrong is left out, and `auto` goes on to the next."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seesay.device.accelerator import Accelerator
from seesay.device.registry import ENTRY_POINTS, find_lack, load_added

Install = Callable[..., None]
CLASS = """
from seesay.device.accelerator import Accelerator
class Acme(Accelerator):
    type, names, label = {type!r}, {names!r}, "Acme"
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(package, code)`: put a package with an entry point where Python finds it."""

    def install(package: str, code: str, value: str = "") -> None:
        folder = tmp_path / package
        info = folder / f"{package}-0.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nacme = {value or f'{package}_device:Acme'}\n")
        (folder / f"{package}_device.py").write_text(code)
        monkeypatch.syspath_prepend(folder)

    return install


def load_names() -> list[tuple[str, tuple[str, ...]]]:
    """The types that come from packages, read again."""
    return [(kind.type, kind.names) for kind in load_added.__wrapped__() if kind.type != "npu"]


def test_a_package_adds_a_device(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("vendor", CLASS.format(type="acme", names=("acme", "acme-2")))
    assert load_names() == [("acme", ("acme", "acme-2"))]
    assert not caplog.records


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('driver\\nexploded')", "OSError: driver exploded"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("", "AttributeError: module 'vendor_device' has no attribute 'Acme'"),
        ("Acme = 3", "TypeError: vendor_device:Acme is not a subclass"),
        (CLASS.format(type=None, names=("acme",)), "got None"),
        (CLASS.format(type="acme", names="acme"), "names must be a tuple of at least one name, got 'acme'"),
        (CLASS.format(type="acme", names=()), "names must be a tuple of at least one name, got ()"),
        (CLASS.format(type="acme", names=("acme:1",)), "got 'acme:1'"),
        (CLASS.format(type="acme", names=("cpu",)), "none of auto, cpu, cuda, meta, rocm, got 'cpu'"),
        (CLASS.format(type="cuda", names=("acme",)), "none of auto, cpu, cuda, meta, rocm, got 'cuda'"),
        (CLASS.format(type="acme", names=("acme",)) + "    label = None", "no label"),
        (CLASS.format(type="acme", names=("acme",)) + "    def __init__(self, x): ...", "missing 1 required"),
    ],
)
def test_one_that_is_wrong_is_left_out_by_name(
    code: str, said: str, install: Install, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "vendor_device", raising=False)
    install("vendor", code)
    assert load_names() == []
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage().startswith("the device of package vendor 0.1 (vendor_device:Acme) cannot be used: ")
    assert said in record.getMessage() and "\n" not in record.getMessage()


def test_of_two_with_the_same_name_one_is_used_and_both_are_told(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever was installed first."""
    install("second", CLASS.format(type="other", names=("acme",)))
    install("first", CLASS.format(type="acme", names=("acme",)))
    assert load_names() == [("acme", ("acme",))]
    assert "package second 0.1 (second_device:Acme)" in caplog.text
    assert "'acme' is the name of a device of package first 0.1: uninstall one of them" in caplog.text


def fail() -> bool:
    raise RuntimeError("no\nioctl")


@pytest.mark.parametrize(
    ("package", "code", "answers", "said"),
    [
        ("torch_acme", "raise RuntimeError('no\\ndriver')", {}, "the package torch-acme cannot be imported: no driver"),
        ("torch_acme", "raise SystemExit('bye')", {}, "the package torch-acme cannot be imported: bye"),
        ("torch_none", "", {}, "the package torch-acme is not installed"),
        ("torch_none.sub", "", {}, "ModuleNotFoundError: No module named 'torch_none'"),
        (None, "", {"is_available": fail}, "cannot be told: RuntimeError: no ioctl"),
        (None, "", {"is_available": lambda: False}, "torch finds no Acme"),
        (None, "", {"is_available": lambda: True, "count": lambda: 0}, "torch finds no Acme"),
        (None, "", {"is_available": lambda: True, "count": fail}, "cannot be told: RuntimeError: no ioctl"),
        (None, "", {"is_available": lambda: True, "type": "acme"}, "cannot be told: RuntimeError: Expected one of cpu"),
    ],
)
def test_why_there_is_none_is_told_whatever_a_vendors_code_does(
    package: str | None,
    code: str,
    answers: dict[str, object],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "torch_acme.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    what = {"type": "xpu", "names": ("acme",), "label": "Acme", "package": package, "requirement": "torch-acme"}
    kind = type("Acme", (Accelerator,), {**what, "type": answers.get("type", "xpu")})()
    vars(kind).update({name: each for name, each in answers.items() if name != "type"})
    found = find_lack(kind)
    assert found is not None and said in found and "\n" not in found
