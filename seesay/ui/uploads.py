"""The files that the page's server holds for visitors: what they uploaded, and what is written for them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path


class Uploads:
    """The first of `folders` is the one for uploads, in which new files are written; a browser may name files in all.

    on_write: told the path of each new file, which is to be deleted with the uploads.
    """

    def __init__(self, folders: Sequence[Path], *, on_write: Callable[[str], object] = lambda _: None) -> None:
        self._folders = [folder.resolve() for folder in folders]
        self._on_write = on_write

    def accepts(self, path: str) -> bool:
        """Return whether `path` is inside the folders after symbolic links are resolved. The file may not exist."""
        try:
            resolved = Path(path).resolve()
        except (OSError, ValueError):
            return False
        return Path(path).is_absolute() and any(resolved.is_relative_to(folder) for folder in self._folders)

    def write(self, name: str, content: bytes) -> str:
        """Write a file of this name in a folder with a random name. Returns its path."""
        folder = self._folders[0] / secrets.token_hex(32)
        folder.mkdir(parents=True)
        path = folder / name
        path.write_bytes(content)
        self._on_write(str(path))
        return str(path)


def make_uploads(examples_folder: Path, *, on_write: Callable[[str], object]) -> Uploads:
    """Return the uploads of the page that is being built, beside the files of its examples."""
    from gradio.utils import get_upload_folder

    return Uploads([Path(get_upload_folder()), examples_folder], on_write=on_write)
