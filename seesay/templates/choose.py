"""Choose the chat template of a model: the one the user set, else the checkpoint's own, else a guess by its name."""

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
    """Return the template of a model.

    model_name: path or hub id of the model.
    config: the user's choice, in a form that `as_config` accepts; None takes the model's own.
    folder: folder of the checkpoint, which may hold the processor's template in a separate file.
    """
    if config is not None:
        return _from_config(as_config(config), tokenizer)
    source = tokenizer.chat_template or (None if folder is None else _read_jinja(folder))
    if source:
        return _from_jinja(model_name, source, tokenizer)
    name = builtin.guess(model_name)
    if name is None:
        logger.warning(
            "%s has no chat template, and none is known for its name: prompts are passed to the model unchanged "
            "('base'). If it is a chat model, set chat_template_config=ChatTemplateConfig(model_name=…) to one of: %s",
            model_name,
            ", ".join(builtin.names()),
        )
        name = "base"
    pieces = builtin.find(name)
    assert pieces is not None
    return _from_pieces(name, pieces, tokenizer)


def as_config(chosen: ChatTemplateConfig | str | os.PathLike[str]) -> ChatTemplateConfig:
    """Return the configuration for `chosen`: a configuration, a template's name, a .jinja file, a model's folder, or a
    .json file or JSON text for `ChatTemplateConfig.from_json`. A built-in name takes precedence over a folder."""
    if isinstance(chosen, ChatTemplateConfig):
        return chosen
    given = os.fspath(chosen)
    if given.endswith(".json") or given.lstrip().startswith("{"):
        return ChatTemplateConfig.from_json(given)
    if given.endswith((".jinja", ".j2")) or (builtin.find(given) is None and Path(given).is_dir()):
        return ChatTemplateConfig(model_name=Path(given).stem, model_path=given)
    return ChatTemplateConfig(model_name=given)


def as_template(value: Any, tokenizer: PromptTokenizer) -> ChatTemplate:
    """Return the template that a user set: a template, or a value that `as_config` accepts. Raises `ConfigError` for an
    unknown name and TypeError for a value of another type."""
    if isinstance(value, ChatTemplate):
        return value
    if not isinstance(value, ChatTemplateConfig | str | os.PathLike):
        expected = "a ChatTemplate, ChatTemplateConfig, or a template's name or file"
        raise TypeError(f"chat_template must be {expected}, got {type(value).__name__}")
    return choose_template("", tokenizer, value)


def _from_config(config: ChatTemplateConfig, tokenizer: PromptTokenizer) -> ChatTemplate:
    changes = {name: value for name in _PIECES if (value := getattr(config, name)) is not None}
    if config.capability in ("infilling", "python"):
        raise ConfigError(f"capability={config.capability!r} is not supported, only 'chat' and 'completion'")
    if config.model_path is not None:
        return _from_file(config, changes, tokenizer)
    pieces = builtin.find(config.model_name)
    if pieces is None:
        if not changes and config.capability != "completion":
            raise ConfigError(
                f"model_name={config.model_name!r}: there is no chat template with this name (known: "
                f"{', '.join(builtin.names())}); for a new template, add its pieces (system=…, user=…, assistant=…)"
            )
        pieces = Pieces()
    if config.capability is not None:
        changes["is_completion"] = config.capability == "completion"
    return _from_pieces(config.model_name, pieces.with_changes(changes), tokenizer)


def _from_file(config: ChatTemplateConfig, changes: dict[str, Any], tokenizer: PromptTokenizer) -> ChatTemplate:
    """Return the jinja template of another model's folder, or of a .jinja file."""
    other = sorted(set(changes) - {"meta_instruction", "stop_words"})
    if other or config.capability == "completion":
        what = ", ".join(other) or "capability"
        raise ConfigError(f"{what} cannot be set for the jinja template of model_path={config.model_path!r}")
    source = _read_jinja(Path(str(config.model_path)))
    if source is None:
        raise ConfigError(f"model_path must be a jinja file or a folder with one, got {config.model_path!r}")
    template = _from_jinja(config.model_name, source, tokenizer)
    if "meta_instruction" in changes:
        template.meta_instruction = changes["meta_instruction"]
    template.stop_words = list(changes.get("stop_words", ()))
    return template


def _read_jinja(path: Path) -> str | None:
    """Return the template in a file or in a checkpoint's folder, or None."""
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
