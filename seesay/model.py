"""Chat templates as Python classes, under LMDeploy's names.

    @MODELS.register_module(name="mine")
    class Mine(BaseChatTemplate):
        def __init__(self, user="<|user|>", eoh="\\n", assistant="<|bot|>"):
            super().__init__(user=user, eoh=eoh, assistant=assistant)

`ChatTemplateConfig("mine")` then selects it. A class only defines pieces; all templates join them in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from seesay import templates
from seesay.config import ChatTemplateConfig
from seesay.config.checks import check_types
from seesay.errors import ConfigError

__all__ = ["MODELS", "BaseChatTemplate", "ChatTemplateConfig", "ChatTemplateRegistry"]

Registered = TypeVar("Registered", bound="type[BaseChatTemplate]")


class BaseChatTemplate:
    """The pieces of a chat template (see `ChatTemplateConfig`). Subclasses define their defaults."""

    def __init__(
        self,
        system: str = "",
        meta_instruction: str | None = "",
        eosys: str = "",
        user: str = "",
        eoh: str = "",
        assistant: str = "",
        eoa: str = "",
        separator: str = "",
        tool: str = "",
        eotool: str = "",
        capability: Literal["completion", "chat"] = "chat",
        stop_words: Sequence[str] | None = None,
    ) -> None:
        """Raises ConfigError for a piece that is not a string."""
        if capability not in ("completion", "chat"):
            raise ConfigError(f"capability={capability!r} is not supported, only 'chat' and 'completion'")
        if isinstance(stop_words, str):
            raise ConfigError(f"stop_words must be a list of strings or None, got {stop_words!r}")
        self.pieces = templates.Pieces(
            system=system,
            meta_instruction=meta_instruction,
            eosys=eosys,
            user=user,
            eoh=eoh,
            assistant=assistant,
            eoa=eoa,
            separator=separator,
            tool=tool,
            eotool=eotool,
            stop_words=tuple(stop_words or ()),
            is_completion=capability == "completion",
        )
        check_types(self.pieces)


class ChatTemplateRegistry:
    """Register template classes by name."""

    def register_module(
        self,
        name: str | Sequence[str] | None = None,
        force: bool = False,
        module: type[BaseChatTemplate] | None = None,
    ) -> Any:
        """Register a subclass of `BaseChatTemplate` that can be constructed without arguments: `module`, or the class
        that the result decorates.

        name: one name or several; None: the name of the class.
        force: replace a template of this name.
        A class may define LMDeploy's `match(model_path)`, which returns the template's name for the models that it
        belongs to. It is asked for models that have no template of their own.
        Raises ConfigError if a name is taken, or if the class overrides the methods that join the pieces.
        """
        if module is not None:
            return _register(module, name, force)
        return lambda cls: _register(cls, name, force)


def _register(cls: Registered, name: str | Sequence[str] | None, force: bool) -> Registered:
    if not (isinstance(cls, type) and issubclass(cls, BaseChatTemplate)):
        raise ConfigError(f"a chat template must be a subclass of seesay.model.BaseChatTemplate, got {cls!r}")
    for method in ("get_prompt", "messages2prompt"):
        if hasattr(cls, method):
            raise ConfigError(
                f"{cls.__name__}.{method} is not supported: a template only defines pieces; for other formats, "
                "use a jinja file: ChatTemplateConfig(name, model_path='template.jinja')"
            )
    try:
        pieces = cls().pieces
    except TypeError as error:
        raise ConfigError(f"{cls.__name__}() must work without arguments and call super().__init__: {error}") from None
    match = getattr(cls, "match", None)
    for each in [name or cls.__name__] if name is None or isinstance(name, str) else name:
        templates.register(each, pieces, match=match, replace=force)
    return cls


MODELS = ChatTemplateRegistry()
