"""Choose the chat template of a model: the one the user set, else the checkpoint's own, else a guess (`guesses.py`)."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from seesay.checkpoint.files import read_object
from seesay.checkpoint.layouts.original_mistral import read_model_object
from seesay.checkpoint.tekken_file import find_tekken_version
from seesay.config import ChatTemplateConfig
from seesay.errors import ConfigError
from seesay.templates import builtin
from seesay.templates.chat import ChatTemplate, PromptTokenizer
from seesay.templates.guesses import find_replacement, guess, name_of
from seesay.templates.jinja import JinjaTemplate
from seesay.templates.pieces import Pieces, PiecesTemplate
from seesay.templates.sandbox import BoundedTemplate, RenderError
from seesay.templates.stored import named_templates, read_templates

logger = logging.getLogger("seesay")

_BASE = re.compile(r"(?:^|[-_])base(?:[-_]|$)")
_PIECES = tuple(field.name for field in fields(ChatTemplateConfig) if field.name in {f.name for f in fields(Pieces)})


def choose_template(
    model_name: str,
    tokenizer: PromptTokenizer,
    config: ChatTemplateConfig | str | os.PathLike[str] | None = None,
    *,
    folder: Path | None = None,
) -> ChatTemplate:
    """Return the template of a model: its own, unless `GUESSES` replaces that.

    model_name: path or hub id of the model.
    config: the user's choice, in a form that `as_config` accepts; None takes the model's own.
    folder: folder of the checkpoint, whose processor may have a template of its own. It takes precedence over the
        tokenizer's, which often knows nothing of pictures.
    """
    if config is not None:
        return _from_config(as_config(config), tokenizer)
    model_config = None if folder is None else read_model_object(folder, "config.json")
    name = find_replacement(model_name, model_config or {})
    if name is None:
        own = _find_own_template(model_name, tokenizer, folder)
        if own is not None:
            return own
        name = _guess_or_base(model_name, model_config, folder)
    pieces = builtin.find(name)
    assert pieces is not None
    return _from_pieces(name, pieces, tokenizer)


def _find_own_template(model_name: str, tokenizer: PromptTokenizer, folder: Path | None) -> ChatTemplate | None:
    sources = (read_templates(folder) if folder is not None else {}) or named_templates(tokenizer.chat_template)
    if sources:
        return _from_jinja(model_name, sources, tokenizer)
    tekken = None if folder is None else _find_tekken_template(folder, model_name)
    return None if tekken is None else _from_jinja(tekken.stem, read_templates(tekken), tokenizer)


def _find_tekken_template(folder: Path, model_name: str) -> Path | None:
    """Return the file of the template that belongs to the version of a tekken.json; None for a model without one, and
    for one whose name says that it was not trained to chat or that a registered class takes."""
    if _BASE.search(name_of(model_name)) or builtin.match_registered(model_name) is not None:
        return None
    version = find_tekken_version(folder)
    return None if version is None else builtin.find_file(f"mistral-tekken-{version}")


def _guess_or_base(model_name: str, model_config: Mapping[str, object] | None, folder: Path | None) -> str:
    """Return the name of the built-in template of a model that brings none; 'base' if none is known."""
    generation = None if folder is None else read_object(folder / "generation_config.json")
    name = guess(model_name, model_config, generation)
    if name is not None:
        logger.info("%s has no chat template: %r is taken, as its architecture or name suggests", model_name, name)
        return name
    logger.warning(
        "%s has no chat template, and none is known for its architecture and name: prompts are passed to the model "
        "unchanged ('base'). If it is a chat model, set chat_template_config=ChatTemplateConfig(model_name=…) to "
        "one of: %s",
        model_name,
        ", ".join(builtin.names()),
    )
    return "base"


def as_config(chosen: ChatTemplateConfig | str | os.PathLike[str]) -> ChatTemplateConfig:
    """Return the configuration for `chosen`: a configuration, a template's name, a Jinja file, a model's folder, or a
    .json file or JSON text for `ChatTemplateConfig.from_json`. A known name takes precedence over a file or folder."""
    if isinstance(chosen, ChatTemplateConfig):
        return _with_file(chosen)
    given = os.fspath(chosen)
    if given.endswith(".json") or given.lstrip().startswith("{"):
        return ChatTemplateConfig.from_json(given)
    if given.endswith((".jinja", ".j2")) or (given not in builtin.names() and Path(given).exists()):
        return ChatTemplateConfig(model_name=Path(given).stem, model_path=given)
    return _with_file(ChatTemplateConfig(model_name=given))


def _with_file(config: ChatTemplateConfig) -> ChatTemplateConfig:
    """Return the configuration with the path of its template, if it names one that is Jinja."""
    file = None if config.model_path is not None else builtin.find_file(config.model_name)
    return config if file is None else replace(config, model_path=file)


def check_choice(chosen: ChatTemplateConfig | str | os.PathLike[str]) -> ChatTemplateConfig:
    """Return the configuration for `chosen` after everything was checked that needs no tokenizer. Raises ConfigError
    for an unknown name, and for a file that is missing or not valid."""
    config = as_config(chosen)
    if config.model_path is None:
        _pieces_of(config)
    else:
        for source in _sources_of(config, _changes_of(config)).values():
            _check_jinja(config, source)
    return config


def as_portable(chosen: ChatTemplateConfig | str | os.PathLike[str] | None) -> ChatTemplateConfig | None:
    """Return a configuration that means the same in another process, which does not know what this one registered."""
    if chosen is None:
        return None
    config = as_config(chosen)
    registered = builtin.find_registered(config.model_name)
    if config.model_path is not None or registered is None:
        return config
    pieces = _pieces_of(config)
    if lost := _list_other_fields(pieces):
        raise ConfigError(
            f"model_name={config.model_name!r}: a registered template with {', '.join(lost)} cannot be passed to the "
            "processes of a server: use a Jinja file, ChatTemplateConfig(name, model_path='template.jinja')"
        )
    return replace(
        config,
        **{name: getattr(pieces, name) for name in _PIECES},
        capability="completion" if pieces.is_completion else "chat",
    )


def _list_other_fields(pieces: Pieces) -> list[str]:
    """Return the fields that are set and that a `ChatTemplateConfig` does not have."""
    other = [field.name for field in fields(Pieces) if field.name not in {*_PIECES, "is_completion"}]
    return [name for name in other if getattr(pieces, name) != getattr(Pieces(), name)]


def as_template(value: object, tokenizer: PromptTokenizer) -> ChatTemplate:
    """Return the template that a user set: a template, or a value that `as_config` accepts. Raises `ConfigError` for an
    unknown name and TypeError for a value of another type."""
    if isinstance(value, ChatTemplate):
        return value
    if not isinstance(value, ChatTemplateConfig | str | os.PathLike):
        expected = "a ChatTemplate, ChatTemplateConfig, or a template's name or file"
        raise TypeError(f"chat_template must be {expected}, got {type(value).__name__}")
    return choose_template("", tokenizer, value)


def _from_config(config: ChatTemplateConfig, tokenizer: PromptTokenizer) -> ChatTemplate:
    if config.model_path is None:
        return _from_pieces(config.model_name, _pieces_of(config), tokenizer)
    changes = _changes_of(config)
    sources = _sources_of(config, changes)
    for source in sources.values():
        _check_jinja(config, source)
    template = _from_jinja(config.model_name, sources, tokenizer, file=Path(str(config.model_path)).name)
    if "meta_instruction" in changes:
        template.meta_instruction = changes["meta_instruction"]
    template.stop_words = list(changes.get("stop_words", ()))
    return template


def _changes_of(config: ChatTemplateConfig) -> dict[str, Any]:
    if config.capability in ("infilling", "python"):
        raise ConfigError(f"capability={config.capability!r} is not supported, only 'chat' and 'completion'")
    return {name: value for name in _PIECES if (value := getattr(config, name)) is not None}


def _pieces_of(config: ChatTemplateConfig) -> Pieces:
    """Return the named template with the configuration's changes. A new name with pieces is a new template."""
    changes = _changes_of(config)
    pieces = builtin.find(config.model_name)
    if pieces is None:
        if not changes and config.capability != "completion":
            raise ConfigError(
                f"model_name={config.model_name!r}: there is no chat template with this name; "
                f"{builtin.suggest(config.model_name)}. A new template needs its pieces, or a Jinja file"
            )
        pieces = Pieces()
    if config.capability is not None:
        changes["is_completion"] = config.capability == "completion"
    return pieces.with_changes(changes)


def _sources_of(config: ChatTemplateConfig, changes: Mapping[str, object]) -> dict[str, str]:
    """Return the Jinja templates of another model's folder, or of a Jinja file, by name."""
    other = sorted(set(changes) - {"meta_instruction", "stop_words"})
    if other or config.capability == "completion":
        what = ", ".join(other) or "capability"
        raise ConfigError(f"{what} cannot be set for the jinja template of model_path={config.model_path!r}")
    path = Path(str(config.model_path))
    if not path.exists():
        raise ConfigError(f"chat template {str(path)!r}: there is no such file or folder")
    sources = read_templates(path, with_tokenizer=True)
    if not sources:
        raise ConfigError(f"model_path must be a jinja file or a folder with one, got {config.model_path!r}")
    return sources


def _check_jinja(config: ChatTemplateConfig, source: str) -> None:
    try:
        BoundedTemplate(source)
    except RenderError as error:
        raise ConfigError(f"chat template {str(config.model_path)!r}: not valid Jinja: {error}") from None


def _from_jinja(
    name: str, sources: Mapping[str, str], tokenizer: PromptTokenizer, *, file: str | None = None
) -> JinjaTemplate:
    return JinjaTemplate(
        name,
        sources["default"],
        named={other: source for other, source in sources.items() if other != "default"},
        special_tokens=tuple(tokenizer.special_tokens),
        variables=tokenizer.template_variables,
        file=file,
    )


def _from_pieces(name: str, pieces: Pieces, tokenizer: PromptTokenizer) -> PiecesTemplate:
    return PiecesTemplate(name, pieces, special_tokens=tuple(tokenizer.special_tokens))
