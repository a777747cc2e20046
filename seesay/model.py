"""Chat templates as Python classes, under the names that LMDeploy gives them.

    @MODELS.register_module(name="mine")
    class Mine(BaseChatTemplate):
        def __init__(self, user="<|user|>", eoh="\\n", assistant="<|bot|>"):
            super().__init__(user=user, eoh=eoh, assistant=assistant)

Afterwards `ChatTemplateConfig("mine")` chooses it. A class is its pieces: how they are joined is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from seesay import templates
from seesay.config import ChatTemplateConfig
from seesay.config.checks import check_types
from seesay.errors import ConfigError

__all__ = ["MODELS", "BaseChatTemplate", "ChatTemplateConfig", "ChatTemplateRegistry"]

Registered = TypeVar("Registered", bound="type[BaseChatTemplate]")


class BaseChatTemplate:
    """The pieces of a chat template (see `ChatTemplateConfig`); subclasses bring defaults for them."""

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
        """Raises ConfigError for a piece that is no text."""
        if capability not in ("completion", "chat"):
            raise ConfigError(f"capability={capability!r} is not supported (only 'chat' and 'completion' are)")
        if isinstance(stop_words, str):
            raise ConfigError(f"stop_words={stop_words!r}: must be a list (a text each) or None")
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
    """Makes classes known by name."""

    def register_module(self, name: str) -> Callable[[Registered], Registered]:
        """A decorator for subclasses of `BaseChatTemplate` that can be made without arguments.

        Raises ConfigError for a name that is taken, and for a class that joins its pieces by methods of its own.
        """

        def register(cls: Registered) -> Registered:
            for method in ("get_prompt", "messages2prompt"):
                if hasattr(cls, method):
                    raise ConfigError(
                        f"{cls.__name__}.{method} is not supported: a template is its pieces; for other forms, give "
                        "a jinja file with ChatTemplateConfig(name, model_path='template.jinja')"
                    )
            templates.register(name, cls().pieces)
            return cls

        return register


MODELS = ChatTemplateRegistry()
