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

METADATA = """\
Metadata-Version: 2.4
Name: seesay
Version: 9.9
Requires-Dist: torch>=2.11
Provides-Extra: serve
Requires-Dist: fastapi>=0.115; extra == 'serve'
Requires-Dist: uvicorn>=0.32; (python_version >= '3.11') and extra == 'serve'
Provides-Extra: video
Requires-Dist: av>=14.0; extra == "video"
"""

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
        (info / "METADATA").write_text(METADATA)
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
    assert install_command("serve") == "pip install 'fastapi>=0.115' 'uvicorn>=0.32'"


def test_a_wheel(install: Install, tmp_path: Path) -> None:
    """It is installed again with the extra, or where it is gone the packages are named."""
    wheel = tmp_path / "seesay-9.9-py3-none-any.whl"
    wheel.touch()
    install({"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("video") == f"pip install '{wheel}[video]'"
    wheel.unlink()
    assert install_command("video") == "pip install 'av>=14.0'"


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (None, "pip install 'av>=14.0'"),
        ({"url": "https://x.org/seesay.whl", "archive_info": {}}, "'seesay[video] @ https://x.org/seesay.whl'"),
        ({"url": "https://x.org/seesay", "vcs_info": {"vcs": "git"}}, "'seesay[video] @ git+https://x.org/seesay'"),
        ({"archive_info": {}}, "pip install 'av>=14.0'"),
    ],
    ids=["an index", "a wheel of a site", "a repository", "nothing"],
)
def test_other_origins(install: Install, direct_url: dict[str, Any] | None, command: str) -> None:
    """seesay is on no index, so an index that it came from may be reached no more."""
    install(direct_url)
    assert install_command("video").endswith(command)


def test_a_package_without_a_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr("seesay.install_command.__file__", str(tmp_path / "seesay" / "install_command.py"))
    assert install_command("serve") == "pip install '.[serve]' in a clone of seesay"


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
