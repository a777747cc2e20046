"""The answers to the prompts of a call, of which each may have several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from seesay.engine.front.choices import choices_of, find_best
from seesay.engine.front.response import AnswerBuilder, Response
from seesay.errors import ConfigError, RequestError
from seesay.values import GenerationRequest, OutputDelta


def check_streams(requests: Iterable[GenerationRequest | RequestError]) -> None:
    """Raise ConfigError for requests whose answers cannot be handed out in pieces."""
    for request in requests:
        config = None if isinstance(request, RequestError) else request.gen_config
        if config is not None and config.best_of is not None and config.best_of > config.n:
            raise ConfigError(
                f"best_of={config.best_of} cannot be streamed: the best of several answers is known at the end; "
                "use stream_response=False"
            )


class Choices:
    """`requests` asks for single answers; their deltas become the answers to the given ones."""

    def __init__(self, given: Sequence[GenerationRequest | RequestError]) -> None:
        self.requests: list[GenerationRequest | RequestError] = []
        self._given = given
        self._builders: list[AnswerBuilder] = []
        self._prompts: list[int] = []  # of each single request, the index of its prompt
        for index, request in enumerate(given):
            several = [request] if isinstance(request, RequestError) else choices_of(request)
            self.requests += several
            self._builders += [AnswerBuilder(index, choice_index=choice) for choice in range(len(several))]
            self._prompts += [index] * len(several)
        self._num_left = Counter(self._prompts)
        self._complete: dict[int, list[Response]] = {}

    @property
    def _has_several(self) -> bool:
        return len(self.requests) > len(self._given)

    def add(self, index: int, delta: OutputDelta, *, whole: bool) -> tuple[Response, Response | None]:
        """Return the delta of a single request as a piece of its answer, and with `whole` the answer to the prompt, if
        this was its last delta."""
        builder = self._builders[index]
        piece = builder.add(delta)
        if not whole or delta.finish_reason is None:
            return piece, None
        if not self._has_several:
            return piece, builder.complete()
        which = self._prompts[index]
        self._complete.setdefault(which, []).append(builder.complete())
        self._num_left[which] -= 1
        return piece, None if self._num_left[which] else self._join(which)

    def _join(self, which: int) -> Response:
        """The answer to a prompt that has all of its answers."""
        answers = sorted(self._complete.pop(which), key=lambda answer: answer.choice_index)
        given = self._given[which]
        if isinstance(given, RequestError):
            return answers[0]
        config = given.gen_config
        if len(answers) > config.n:
            scores = [answer.mean_logprob if answer.error is None else None for answer in answers]
            answers = [answers[index] for index in find_best(scores, config.n)]
            for index, answer in enumerate(answers):
                answer.choice_index = index
                if config.logprobs is None:
                    answer.logprobs = None
        first, *others = answers
        first.other_choices = others
        return first
