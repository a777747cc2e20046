"""Options of speculative decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from seesay.config.checks import check_types, require
from seesay.errors import ConfigError

MAX_TOKENS = 15
"""Most tokens that are proposed at a time."""
_OTHER_METHODS = (
    "eagle",
    "deepseek_mtp",
    "medusa",
    "mlp_speculator",
    "suffix",
)
"""Methods of other engines."""


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """Options of speculative decoding: several tokens are proposed, and computed in one step. Those that the model
    would have chosen itself are kept, so answers are the same. See docs/speculation.md.

    method: 'ngram' proposes what followed in the request's own prompt or answer, or in answers to the same pictures,
        where its last tokens stood before; 'draft' what a smaller model of the same vocabulary would choose; 'mtp' what
        a layer of the checkpoint predicts that was trained for it; 'eagle3' what such a layer from a folder of its own
        predicts; 'none' nothing.
    model: that model, for 'draft', or that head, for 'eagle3': a folder, or the id of one on the hub.
    num_speculative_tokens: most tokens that are proposed at a time for one answer.
    """

    method: Literal["ngram", "draft", "mtp", "eagle3", "none"] = "ngram"
    model: str = ""
    num_speculative_tokens: int = 7

    def __post_init__(self) -> None:
        method, most = self.method, self.num_speculative_tokens
        known = "is not supported, only 'ngram', 'draft', 'mtp' and 'eagle3' are"
        require(method not in _OTHER_METHODS, "speculative.method", method, known)
        check_types(self)
        if method in ("draft", "eagle3"):
            require(
                bool(self.model),
                "speculative.model",
                self.model,
                f"must name what proposes with speculative.method={method!r}",
            )
        else:
            require(
                not self.model,
                "speculative.model",
                self.model,
                f"must be empty with speculative.method={method!r}, which needs none",
            )
        require(1 <= most <= MAX_TOKENS, "speculative.num_speculative_tokens", most, f"must be in [1, {MAX_TOKENS}]")


def make_speculative(given: SpeculativeConfig | Mapping[str, Any] | None) -> SpeculativeConfig | None:
    """Return options that may be given as a dict, as vLLM's are. Raises `ConfigError`."""
    if given is None or isinstance(given, SpeculativeConfig):
        return given
    known = [field.name for field in fields(SpeculativeConfig)]
    for name in given:
        if name not in known:
            raise ConfigError(f"speculative: {name!r} is not an option, only {', '.join(known)} are")
    try:
        return SpeculativeConfig(**given)
    except ConfigError as error:
        known_by = "" if str(error).startswith("speculative.") else "speculative."
        raise ConfigError(f"{known_by}{error}") from None
