"""Chooses the chat template of a model: what the user asked for, else the checkpoint's own, else a guess by name."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from seesay.checkpoint import read_text
from seesay.config import ChatTemplateConfig
from seesay.errors import CheckpointError, ConfigError
from seesay.templates import builtin
from seesay.templates.chat import ChatTemplate, PromptTokenizer
from seesay.templates.jinja import JinjaTemplate
from seesay.templates.pieces import Pieces, PiecesTemplate

logger = logging.getLogger("seesay")

_PIECES = tuple(field.name for field in fields(ChatTemplateConfig) if field.name in {f.name for f in fields(Pieces)})


def choose_template(
    model_name: str,
    tokenizer: PromptTokenizer,
    config: ChatTemplateConfig | str | os.PathLike[str] | None = None,
    *,
    folder: Path | None = None,
) -> ChatTemplate:
    """The template for a model.

    model_name: its path or hub id.
    config: which to take, in a form of `as_config`; None: the model's own.
    folder: where it lies, for checkpoints that keep the template of their processor in a file of its own.
    """
    if config is not None:
        return _from_config(as_config(config), tokenizer)
    source = tokenizer.chat_template or (None if folder is None else _read_jinja(folder))
    if source:
        return _from_jinja(model_name, source, tokenizer)
    name = builtin.guess(model_name)
    if name is None:
        logger.warning(
            "%s brings no chat template and its name tells none: prompts go to the model as they are ('base'). "
            "If it is a chat model, choose one with chat_template_config=ChatTemplateConfig(model_name=…), one of: %s",
            model_name,
            ", ".join(builtin.names()),
        )
        name = "base"
    pieces = builtin.find(name)
    assert pieces is not None
    return _from_pieces(name, pieces, tokenizer)


def as_config(chosen: ChatTemplateConfig | str | os.PathLike[str]) -> ChatTemplateConfig:
    """Return the configuration that `chosen` stands for: itself, a template's name, a .jinja file, a model's folder, or
    a .json file or JSON text as `ChatTemplateConfig.from_json` reads it. A built-in name comes before a folder."""
    if isinstance(chosen, ChatTemplateConfig):
        return chosen
    given = os.fspath(chosen)
    if given.endswith(".json") or given.lstrip().startswith("{"):
        return ChatTemplateConfig.from_json(given)
    if given.endswith((".jinja", ".j2")) or (builtin.find(given) is None and Path(given).is_dir()):
        return ChatTemplateConfig(model_name=Path(given).stem, model_path=given)
    return ChatTemplateConfig(model_name=given)


def as_template(value: Any, tokenizer: PromptTokenizer) -> ChatTemplate:
    """Return the template that a user sets: a template, or what `as_config` takes. Raises `ConfigError` for an unknown
    name, TypeError for a value of another type."""
    if isinstance(value, ChatTemplate):
        return value
    if not isinstance(value, ChatTemplateConfig | str | os.PathLike):
        expected = "a ChatTemplate, ChatTemplateConfig, or a template's name or file"
        raise TypeError(f"chat_template must be {expected}, not {type(value).__name__}")
    return choose_template("", tokenizer, value)


def _from_config(config: ChatTemplateConfig, tokenizer: PromptTokenizer) -> ChatTemplate:
    changes = {name: value for name in _PIECES if (value := getattr(config, name)) is not None}
    if config.capability in ("infilling", "python"):
        raise ConfigError(f"capability={config.capability!r} is not supported (only 'chat' and 'completion' are)")
    if config.model_path is not None:
        return _from_file(config, changes, tokenizer)
    pieces = builtin.find(config.model_name)
    if pieces is None:
        if not changes and config.capability != "completion":
            raise ConfigError(
                f"model_name={config.model_name!r}: there is no chat template of this name (there are: "
                f"{', '.join(builtin.names())}); for a new one, give its pieces too (system=…, user=…, assistant=…)"
            )
        pieces = Pieces()
    if config.capability is not None:
        changes["is_completion"] = config.capability == "completion"
    return _from_pieces(config.model_name, pieces.with_changes(changes), tokenizer)


def _from_file(config: ChatTemplateConfig, changes: dict[str, Any], tokenizer: PromptTokenizer) -> ChatTemplate:
    """The jinja template of another model's folder, or of a .jinja file."""
    other = sorted(set(changes) - {"meta_instruction", "stop_words"})
    if other or config.capability == "completion":
        what = ", ".join(other) or "capability"
        raise ConfigError(f"{what}: cannot be changed in the jinja template of model_path={config.model_path!r}")
    source = _read_jinja(Path(str(config.model_path)))
    if source is None:
        raise ConfigError(f"model_path={config.model_path!r}: neither a jinja file nor a folder with a chat template")
    template = _from_jinja(config.model_name, source, tokenizer)
    if "meta_instruction" in changes:
        template.meta_instruction = changes["meta_instruction"]
    template.stop_words = list(changes.get("stop_words", ()))
    return template


def _read_jinja(path: Path) -> str | None:
    """The template in a file or in a checkpoint's folder."""
    try:
        if path.is_file():
            return read_text(path)
        if (path / "chat_template.jinja").is_file():
            return read_text(path / "chat_template.jinja")
        for name in ("chat_template.json", "tokenizer_config.json"):
            if (path / name).is_file():
                template = json.loads(read_text(path / name)).get("chat_template")
                if isinstance(template, str):
                    return template
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"cannot read the chat template of {str(path)!r}: {error}") from None
    return None


def _from_jinja(name: str, source: str, tokenizer: PromptTokenizer) -> JinjaTemplate:
    return JinjaTemplate(
        name, source, special_tokens=tuple(tokenizer.special_tokens), variables=tokenizer.template_variables
    )


def _from_pieces(name: str, pieces: Pieces, tokenizer: PromptTokenizer) -> PiecesTemplate:
    return PiecesTemplate(name, pieces, special_tokens=tuple(tokenizer.special_tokens))
