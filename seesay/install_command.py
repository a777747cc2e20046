"""The command that installs an extra of this package, as messages give it."""

from __future__ import annotations

import shlex
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname


def install_command(extra: str) -> str:
    """Return `pip install` with the extra: of the clone that seesay was installed from if there is one, and
    otherwise of the published package."""
    found = _find_clone()
    if found is None:
        return f"pip install {shlex.quote(f'seesay[{extra}]')}"
    clone, is_editable = found
    place = "." if clone == Path.cwd() else clone
    return f"pip install {'-e ' if is_editable else ''}{shlex.quote(f'{place}[{extra}]')}"


def _find_clone() -> tuple[Path, bool] | None:
    """Return (folder, whether it is installed in editable mode) of the clone, or None for a wheel from elsewhere."""
    # Imported here: an error that names no extra does not need them.
    import json
    from importlib import metadata

    try:
        written = metadata.distribution("seesay").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        folder = Path(__file__).parents[1]
        return (folder, True) if (folder / "pyproject.toml").is_file() else None
    if written is None:
        return None
    origin = json.loads(written)
    if "dir_info" not in origin:
        return None
    folder = Path(url2pathname(urlsplit(origin["url"]).path))
    is_editable = bool(origin["dir_info"].get("editable", False))
    return (folder, is_editable) if (folder / "pyproject.toml").is_file() else None
