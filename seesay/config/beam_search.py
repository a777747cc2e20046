"""Options of a beam search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seesay.config.checks import check_types, refuse_unsupported, require

MAX_BEAMS = 256


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """Options of `Pipeline.beam_search`; names are vLLM's, and what they mean is as in Transformers' `generate`.

    beam_width: texts that are continued at a time, and answers that come back (`num_beams`).
    max_tokens: most tokens of an answer.
    ignore_eos: continue after the model's EOS, and after the special tokens that end a turn of the chat template.
    temperature: 0; nothing is drawn.
    length_penalty: an answer's score is the sum of its log-probabilities divided by its length to this power.
    early_stopping: True ends the search when there are `beam_width` complete answers; False when no text could get a
        better score at its present length; 'never' when none could at any length.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        check_types(self)
        refuse_unsupported(self, {"temperature": (0.0,)})
        require(1 <= self.beam_width <= MAX_BEAMS, "beam_width", self.beam_width, f"must be in [1, {MAX_BEAMS}]")
        require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "must be at least 1")
        require(-10 <= self.length_penalty <= 10, "length_penalty", self.length_penalty, "must be in [-10, 10]")
