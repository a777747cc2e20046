"""Where files of a user lie, by the XDG base directory specification."""

from __future__ import annotations

import os
from pathlib import Path


def find_cache_folder() -> Path:
    """Return the folder of files that may be deleted at any time. Raises RuntimeError for a user without a home."""
    return _find("XDG_CACHE_HOME", "~/.cache") / "seesay"


def find_state_folder() -> Path:
    """Return the folder of files such as histories. Raises RuntimeError for a user without a home."""
    return _find("XDG_STATE_HOME", "~/.local/state") / "seesay"


def find_data_folder() -> Path:
    """Return the folder of files that the user wants to keep. Raises RuntimeError for a user without a home."""
    return _find("XDG_DATA_HOME", "~/.local/share") / "seesay"


def _find(variable: str, default: str) -> Path:
    """Return the folder that `variable` names. The specification says: "If an implementation encounters a relative path
    in any of these variables it should consider the path invalid and ignore it."
    """
    given = Path(os.environ.get(variable, ""))
    return given if given.is_absolute() else Path(default).expanduser()
