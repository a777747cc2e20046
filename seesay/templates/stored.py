"""Read the Jinja chat templates of a model folder, wherever the publisher stored them."""

from __future__ import annotations

from pathlib import Path

from seesay.checkpoint import read_text
from seesay.checkpoint.files import read_object
from seesay.errors import CheckpointError

NAMED = ("tool_use", "rag")
"""Templates that requests with tools or documents take where a checkpoint has them. All others take "default"."""

_FOLDER = "additional_chat_templates"


def read_templates(path: Path, *, with_tokenizer: bool = False) -> dict[str, str]:
    """Return the templates in a file or in a model folder by name, or nothing if there is no "default" one.

    The order is that of Transformers' processors: chat_template.json, chat_template.jinja (with
    additional_chat_templates/), processor_config.json. With `with_tokenizer`, tokenizer_config.json comes last.
    Raises CheckpointError for a file that cannot be read.
    """
    try:
        if path.is_file():
            return {"default": read_text(path)}
        if found := _in_json(path / "chat_template.json"):
            return found
        if (path / "chat_template.jinja").is_file():
            others = {name: path / _FOLDER / f"{name}.jinja" for name in NAMED}
            return {
                "default": read_text(path / "chat_template.jinja"),
                **{name: read_text(file) for name, file in others.items() if file.is_file()},
            }
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read the chat template of {str(path)!r}: {error}") from None
    found = _in_json(path / "processor_config.json")
    return found or (_in_json(path / "tokenizer_config.json") if with_tokenizer else {})


def named_templates(value: object) -> dict[str, str]:
    """Return the templates in `value`, which is a text, a mapping by name, or a list of names and templates, as
    tokenizer_config.json has it. Nothing if there is no "default" one."""
    if isinstance(value, str):
        return {"default": value} if value else {}
    if isinstance(value, list):
        value = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
    if not isinstance(value, dict) or not isinstance(value.get("default"), str):
        return {}
    return {name: value[name] for name in ("default", *NAMED) if isinstance(value.get(name), str)}


def _in_json(file: Path) -> dict[str, str]:
    return named_templates((read_object(file) or {}).get("chat_template"))
