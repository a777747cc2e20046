"""The fields by which clients say whether a model thinks, how much, and how long at most.

docs/reasoning.md says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from seesay.serving.errors import bad_request
from seesay.serving.requests.fields import StrictModel
from seesay.serving.requests.request_model import RequestModel

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ThoughtLimitFields(RequestModel):
    """The limit of a thought, by the names of several servers."""

    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "max_thinking_tokens": ("max_thinking_tokens", "thinking_token_budget")
    }

    max_thinking_tokens: int | None = Field(None, ge=0, description="extension: end the thought at so many tokens")
    thinking_token_budget: int | None = Field(None, ge=0, description="extension: vLLM's name of max_thinking_tokens")

    @property
    def thought_limit(self) -> int | None:
        """Return the limit. Raises `ApiError` 400 for two that differ."""
        first, second = self.max_thinking_tokens, self.thinking_token_budget
        if first is not None and second is not None and first != second:
            raise bad_request(
                "max_thinking_tokens and thinking_token_budget mean the same and differ: give one of them",
                "thinking_token_budget",
            )
        return second if first is None else first


class ReasoningOptions(StrictModel):
    """`reasoning` of the Responses API. Thoughts are not summarized: 'auto' gives none."""

    hints: ClassVar[Mapping[str, tuple[object, ...]]] = {"summary": ("auto",), "generate_summary": ("auto",)}

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None

    def request_options(self) -> dict[str, Any]:
        """Return the fields of `GenerationRequest`."""
        return {"reasoning_effort": self.effort}


class ThinkingOff(StrictModel):
    type: Literal["disabled"]


class ThinkingAdaptive(StrictModel):
    """The model thinks, as long as it likes."""

    type: Literal["adaptive"]


class ThinkingOn(StrictModel):
    """budget_tokens: most tokens of the thought."""

    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1)


ThinkingOptions = Annotated[ThinkingOn | ThinkingOff | ThinkingAdaptive, Field(discriminator="type")]
"""`thinking` of Anthropic's API."""
