"""How models mark their thoughts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """The markers that begin and end a thought, which stands before all else in an answer."""

    name: str
    begin: str
    end: str

    def is_open(self, prompt: str) -> bool:
        """Whether a rendered prompt ends inside a thought, so that the answer begins in it."""
        return prompt.rfind(self.begin) > prompt.rfind(self.end)


THINK = ReasoningFormat(name="think", begin="<think>", end="</think>")
MISTRAL_THINK = ReasoningFormat(name="mistral", begin="[THINK]", end="[/THINK]")
MINICPM_THOUGHT = ReasoningFormat(name="minicpm", begin="<|thought_start|>", end="<|thought_end|>")
KIMI_THINK = ReasoningFormat(name="kimi_vl", begin="\u25c1think\u25b7", end="\u25c1/think\u25b7")
HARMONY_THOUGHT = ReasoningFormat(name="gpt_oss", begin="<|channel|>analysis<|message|>", end="<|end|>")
GEMMA_THOUGHT = ReasoningFormat(name="gemma4", begin="<|channel>thought", end="<channel|>")
