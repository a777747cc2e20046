"""The choice of a chat template, or its pieces."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from seesay.config.checks import check_types
from seesay.errors import ConfigError

_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class ChatTemplateConfig:
    """The chat template to use, and changes of its pieces.

    model_name: name of a built-in template (see `seesay.templates.names()`). A new name defines a template from the
        pieces given here:
        {system}{meta_instruction}{eosys}{user}{content}{eoh}{assistant}{content}{eoa}{separator}{user}…
    Other fields: pieces of the template. None keeps the built-in value.
    """

    model_name: str
    model_path: str | os.PathLike[str] | None = None
    system: str | None = None
    meta_instruction: str | None = None
    eosys: str | None = None
    user: str | None = None
    eoh: str | None = None
    assistant: str | None = None
    eoa: str | None = None
    tool: str | None = None
    eotool: str | None = None
    separator: str | None = None
    capability: Literal["completion", "infilling", "chat", "python"] | None = None
    stop_words: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_types(self)

    @classmethod
    def from_json(cls, file_or_string: str | os.PathLike[str]) -> ChatTemplateConfig:
        """Read JSON from a file, or from the string itself. Unknown keys raise `ConfigError`."""
        text = os.fspath(file_or_string)
        where = "chat template"
        if not text.lstrip().startswith("{"):
            where = f"chat template file {text[:200]!r}"
            text = _read(where, Path(text))
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: not valid JSON: {error}") from None
        if not isinstance(data, dict):
            raise ConfigError(f"{where}: must be a JSON object, got {type(data).__name__}")
        known = [f.name for f in fields(cls)]
        for key in data:
            if key not in known:
                nearest = "".join(f"; did you mean {n!r}?" for n in difflib.get_close_matches(key, known, n=1))
                raise ConfigError(f"{where}: unknown field {key[:100]!r}{nearest} (known: {', '.join(known)})")
        if "model_name" not in data:
            raise ConfigError(f"{where}: model_name is missing: the name of a built-in template, or a new one")
        return cls(**data)

    def to_json(self) -> str:
        """Return the JSON that `from_json` reads."""
        return json.dumps(
            {f.name: getattr(self, f.name) for f in fields(self)}, ensure_ascii=False, indent=2, default=os.fspath
        )


def _read(where: str, path: Path) -> str:
    try:
        if not path.is_file():
            raise ConfigError(f"{where}: there is no such file")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"{where}: has more than {_MAX_BYTES} bytes, the limit for a file of this kind")
        return data.decode()
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: cannot be read: {error}") from None
