"""How much audio a processor of Transformers takes: some leave out the end of what is longer, and do not say so."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seesay.errors import CheckpointError, RequestError
from seesay.processors.media.decoded import make_decoded_audio
from seesay.values import AudioSamples, DecodedMedia, MediaSize, Modality
from seesay.vl.modules.trial_media import make_blank, refuse

_MAX_WINDOW_S = 60
"""Processors that take longer audio mostly divide it into windows themselves."""
_USUAL_WINDOW_S = 30
_TAILS_PER_S = 20
"""The end of audio is so many parts of a second."""


class AudioWindow:
    """The samples that a processor takes of audio. It is found out by what the processor makes of noise.

    max_samples: how many it takes, and leaves out what comes behind; 0 if it takes more than `_MAX_WINDOW_S`.
    """

    def __init__(
        self,
        process: Callable[[DecodedMedia], Mapping[str, npt.NDArray[Any]]],
        rate_hz: int,
        *,
        named: object,
        where: Path,
    ) -> None:
        """process: the processor. named: the length that it names, if it is a number. Raises `CheckpointError` with
        `where` where it refuses a second of audio."""
        self._process, self._rate_hz = process, rate_hz
        self._num_heard = 0
        self.max_samples = self._find(named, where)

    def check(self, size: MediaSize) -> None:
        """Raise `RequestError` for audio whose end is left out."""
        if size.num_samples > self.max_samples > 0:
            refuse(size, f"it takes the first {self.max_samples / size.rate_hz:g} s alone: divide the audio")
        if size.num_samples > self._num_heard and not self.max_samples:
            if not self._hears_end(size.num_samples):
                refuse(size, "it leaves out the end of it: divide the audio")
            self._num_heard = size.num_samples

    def _find(self, named: object, where: Path) -> int:
        """Return `max_samples`. Raises `CheckpointError` where a second of audio is refused."""

        def is_cut(count: int) -> bool:
            try:
                return not self._hears_end(count)
            except RequestError:  # it refuses audio of this length
                return True

        try:
            self._process(make_blank(Modality.AUDIO, MediaSize.of_audio(self._rate_hz, self._rate_hz)))
        except RequestError as error:
            raise CheckpointError(f"{where}: {error}") from error
        tail, most = self._rate_hz // _TAILS_PER_S, self._rate_hz * _MAX_WINDOW_S
        if not is_cut(most):
            self._num_heard = most
            return 0
        for window in (named, self._rate_hz * _USUAL_WINDOW_S):
            if isinstance(window, int) and tail < window < most and is_cut(window + tail) and not is_cut(window):
                return window
        return max(1, bisect.bisect_left(range(most), True, lo=tail, key=is_cut) - tail)

    def _hears_end(self, num_samples: int) -> bool:
        """Return whether the last samples of audio of this length change what the processor makes of it."""
        samples = np.random.default_rng(0).normal(0, 0.1, num_samples).astype(np.float32)
        silent = samples.copy()
        silent[-max(1, self._rate_hz // _TAILS_PER_S) :] = 0
        made, other = (
            self._process(make_decoded_audio(AudioSamples(samples=each, rate_hz=self._rate_hz)))
            for each in (samples, silent)
        )
        return any(not np.array_equal(made[name], other[name]) for name in made)
