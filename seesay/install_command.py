"""The command that installs an extra of this package, as messages give it. It works as it is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

if TYPE_CHECKING:
    from importlib.metadata import Distribution


def install_command(extra: str) -> str:
    """Return `pip install` with the extra of what seesay was installed from: a clone, a wheel, or an address. Where
    that is not known or is gone, name the packages of the extra."""
    # Imported here: an error that names no extra does not need it.
    from importlib import metadata

    try:
        distribution = metadata.distribution("seesay")
    except metadata.PackageNotFoundError:
        clone = Path(__file__).parents[1]
        if (clone / "pyproject.toml").is_file():
            return _install_clone(clone, extra, is_editable=True)
        return f"pip install {shlex.quote(f'.[{extra}]')} in a clone of seesay"
    return _install_again(_read_origin(distribution), extra) or _install_packages(distribution, extra)


def _read_origin(distribution: Distribution) -> dict[str, object]:
    """Return what pip noted of the place that it installed from; nothing for an index."""
    import json

    written = distribution.read_text("direct_url.json")
    origin = json.loads(written) if written else {}
    return origin if isinstance(origin, dict) and isinstance(origin.get("url"), str) else {}


def _install_again(origin: dict[str, Any], extra: str) -> str | None:
    """Return the command that installs from the same place; None if that is gone."""
    if not origin:
        return None
    url = origin["url"]
    if "vcs_info" in origin:
        return _install(f"seesay[{extra}] @ {origin['vcs_info'].get('vcs', 'git')}+{url}")
    if not url.startswith("file:"):
        return _install(f"seesay[{extra}] @ {url}")
    path = Path(url2pathname(urlsplit(url).path))
    if path.is_file():
        return _install(f"{path}[{extra}]")
    if not (path / "pyproject.toml").is_file():
        return None
    return _install_clone(path, extra, is_editable=bool(origin.get("dir_info", {}).get("editable", False)))


def _install_clone(clone: Path, extra: str, *, is_editable: bool) -> str:
    place = "." if clone == Path.cwd() else clone
    what = f"{place}[{extra}]"
    return _install("-e", what) if is_editable else _install(what)


def _install_packages(distribution: Distribution, extra: str) -> str:
    wanted = re.compile(rf"""extra == ['"]{re.escape(extra)}['"]""")
    listed = [line.partition(";") for line in distribution.requires or ()]
    return _install(*(requirement.strip() for requirement, _, marker in listed if wanted.search(marker)))


def _install(*words: str) -> str:
    return shlex.join(["pip", "install", *words])
