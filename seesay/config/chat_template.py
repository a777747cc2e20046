"""The choice of a chat template, or its pieces."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from seesay.config.checks import check_types
from seesay.errors import ConfigError


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
        text = str(file_or_string)
        try:
            if not text.lstrip().startswith("{"):
                text = Path(text).read_text(encoding="utf-8")
            data = json.loads(text)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"chat template {str(file_or_string)[:200]!r} is neither a JSON file nor JSON text: {error}"
            ) from None
        known = {f.name for f in fields(cls)}
        if not isinstance(data, dict) or not set(data) <= known or "model_name" not in data:
            extra = sorted(set(data) - known) if isinstance(data, dict) else data
            raise ConfigError(
                f"a chat template must be a JSON object with model_name and any of {sorted(known)}, got {extra!r}"
            )
        return cls(**data)

    def to_json(self) -> str:
        """Return the JSON that `from_json` reads."""
        return json.dumps(
            {f.name: getattr(self, f.name) for f in fields(self)}, ensure_ascii=False, indent=2, default=os.fspath
        )
