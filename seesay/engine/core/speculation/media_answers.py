"""Remembers answers about media: one about the same picture often says the same again."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from seesay.llm.plans.followed_text import NGRAM
from seesay.system.hashing import digest

if TYPE_CHECKING:
    from seesay.llm.scheduling.sequence import Sequence

MOST_TOKENS = 1 << 20
"""Tokens of all answers: 4 MiB. A shorter answer than `_LEAST_COUNTED` counts as many."""
MOST_OF_MEDIA = 1 << 13
"""Tokens of the answers about the same media: the latest ones."""
_LEAST_COUNTED = 64

_Answer = npt.NDArray[np.int32]


class MediaAnswers:
    """Tokens of answers, behind the last ones of their prompts, by the media of these. Sequences that share no KV
    blocks, for another cache salt or adapter, share no answers either. The media that were asked about longest ago are
    forgotten first. Used by the engine loop's thread.

    num_tokens: those that are counted.
    """

    def __init__(self, *, most_tokens: int = MOST_TOKENS, most_of_media: int = MOST_OF_MEDIA) -> None:
        self._most_tokens, self._most_of_media = most_tokens, most_of_media
        self._answers: OrderedDict[bytes, list[_Answer]] = OrderedDict()
        self.num_tokens = 0

    def find(self, seq: Sequence) -> npt.NDArray[np.int64]:
        """Return what was answered about the media of a sequence, the latest answer last; nothing for one without."""
        if not self._answers or not seq.items or (key := _make_key(seq)) not in self._answers:
            return np.empty(0, np.int64)
        self._answers.move_to_end(key)
        return np.concatenate(self._answers[key], dtype=np.int64)

    def add(self, seq: Sequence) -> None:
        """Remember the answer of a sequence that has ended, if it has media and is long enough to be known again."""
        if not seq.items or seq.num_generated <= NGRAM:
            return
        start = max(0, seq.num_prompt_tokens - NGRAM)
        answer = seq.token_ids[start : start + self._most_of_media].astype(np.int32)
        key = _make_key(seq)
        before = self._answers.pop(key, [])
        answers = [*(each for each in before if not np.array_equal(each, answer)), answer]
        while _count(answers) > self._most_of_media and len(answers) > 1:
            del answers[0]
        self._answers[key] = answers
        self.num_tokens += _count(answers) - _count(before)
        while self.num_tokens > self._most_tokens:
            self.num_tokens -= _count(self._answers.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget all of them."""
        self._answers.clear()
        self.num_tokens = 0


def _make_key(seq: Sequence) -> bytes:
    return digest(seq.cache_salt, struct.pack("<q", seq.adapter_id), *(item.hash for item in seq.items))


def _count(answers: Iterable[_Answer]) -> int:
    return sum(max(_LEAST_COUNTED, len(answer)) for answer in answers)
