"""The page of the engine's options, docs/options.md: a row for each field, made of its description."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from seesay.commands.arguments.engine_options import (
    EngineOption,
    describe_default,
    engine_options,
    speculation_options,
    vision_options,
)

_INTRODUCTION = """# Options of the engine

The fields of `EngineConfig`, `VisionConfig` and `SpeculativeConfig`, and the options of `seesay chat`,
`seesay serve api_server` and `seesay serve gradio` that set them. None stands for an option that is left out. An
accepted option has an effect; an unsupported one is refused by name.
"""

_OF_THE_MACHINE = {"thread_num": "one per core, 4 to 16"}
"""Defaults that are computed from the machine, in words: the page is the same everywhere."""


def make_options_page() -> str:
    """Return the page as Markdown."""
    from seesay.config import EngineConfig, SpeculativeConfig, VisionConfig

    tables = (
        ("EngineConfig", EngineConfig, engine_options()),
        ("VisionConfig", VisionConfig, vision_options()),
        ("SpeculativeConfig", SpeculativeConfig, speculation_options()),
    )
    parts = [_INTRODUCTION]
    for title, config, options in tables:
        parts.append(f"\n## {title}\n\n| field | option | default | |\n|---|---|---|---|\n")
        parts.extend(_make_rows(config, options))
    return "".join(parts)


def _make_rows(config: Any, options: tuple[EngineOption, ...]) -> Iterator[str]:
    from seesay.config.descriptions import describe_fields

    names, descriptions = {option.target: f"`{option.name}`" for option in options}, describe_fields(config)
    for field in fields(config):
        description = descriptions.get(field.name, "").replace("|", "\\|")
        default = _OF_THE_MACHINE.get(field.name) or describe_default(field) or "None"
        yield f"| `{field.name}` | {names.get(field.name, '')} | {default} | {description} |\n"
