"""The command that installs an extra names what seesay was installed from."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seesay.errors import MissingExtraError
from seesay.install_command import install_command
from seesay.serving import require_packages

Install = Callable[[dict[str, Any] | None], None]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "a clone"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    return folder


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that writes the metadata of a distribution `seesay`, found before the real one."""

    def write(direct_url: dict[str, Any] | None) -> None:
        info = tmp_path / "site" / "seesay-9.9.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.4\nName: seesay\nVersion: 9.9\n")
        if direct_url is not None:
            (info / "direct_url.json").write_text(json.dumps(direct_url))
        monkeypatch.syspath_prepend(info.parent)

    return write


def test_an_editable_clone(clone: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install({"url": clone.as_uri(), "dir_info": {"editable": True}})
    assert install_command("serve") == f"pip install -e '{clone}[serve]'"
    monkeypatch.chdir(clone)
    assert install_command("serve") == "pip install -e '.[serve]'"
    error = MissingExtraError("the server", package="fastapi", extra="serve")
    assert str(error) == "the server requires the package 'fastapi': pip install -e '.[serve]'"


def test_a_copy_installed_from_a_clone(clone: Path, install: Install) -> None:
    install({"url": clone.as_uri(), "dir_info": {}})
    assert install_command("ui") == f"pip install '{clone}[ui]'"


def test_a_clone_that_is_gone(clone: Path, install: Install) -> None:
    install({"url": clone.as_uri(), "dir_info": {"editable": True}})
    (clone / "pyproject.toml").unlink()
    assert install_command("ui") == "pip install 'seesay[ui]'"


@pytest.mark.parametrize(
    "direct_url",
    [None, {"url": "file:///tmp/seesay-9.9-py3-none-any.whl", "archive_info": {}}],
    ids=["from an index", "from a wheel"],
)
def test_a_published_package(install: Install, direct_url: dict[str, Any] | None) -> None:
    install(direct_url)
    assert install_command("video") == "pip install 'seesay[video]'"


def test_a_clone_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only `PYTHONPATH` leads to seesay there is no distribution; the clone is the folder above the package."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    root = Path(__file__).parents[1]
    monkeypatch.chdir(root)
    assert install_command("serve") == "pip install -e '.[serve]'"


@pytest.mark.parametrize("package", ("fastapi", "uvicorn"))
def test_a_server_names_the_package_that_it_lacks_before_it_loads_anything(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_packages()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"the server.*{package}.*\[serve\]"):
        require_packages()
