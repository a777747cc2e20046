"""Models on the hub that a family runs, by name: for docs/models.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Published models with one kind of decoder.

    decoder: `model_type` of their text configuration, as the engine reads it. names: ids on the hub. architecture: the
    one of config.json; a family that claims one alone need not say it. One that is read as the family's (`ORIGINALS`)
    is named.
    """

    decoder: str
    names: tuple[str, ...]
    architecture: str = ""
