"""Texts that are followed on the device: they go on as those that the host follows, and the kernel does what torch
does. On a GPU the kernel runs as it is, elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from triton_cases import DEVICE, MARKS, runs_here

from seesay.llm.plans.followed_text import WEIGHT
from seesay.llm.running.proposals import followed_texts
from seesay.llm.running.proposals.followed_texts import EXPECTED, LENGTH
from seesay.llm.scheduling import text_follower
from seesay.llm.scheduling.text_follower import TextFollower, find_least_rates

MOST, WIDTH, VOCAB = 7, 9000, 500

pytestmark = MARKS

Follow = Callable[..., torch.Tensor]


def follow_by_kernel(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    """Let the kernel change tensors of the CPU."""
    from seesay.kernels import ngrams

    there = [tensor.to(DEVICE) for tensor in tensors]
    proposed = ngrams.follow_texts(*there, **options)
    for tensor, changed in zip(tensors, there, strict=True):
        tensor.copy_(changed)
    return proposed.cpu()


ways = pytest.mark.parametrize("follow", [followed_texts._follow, pytest.param(follow_by_kernel, marks=runs_here)])


class Texts:
    """Texts that the host follows, and the same in tensors, of rows in another order, one of which has no text."""

    def __init__(self, prompts: list[list[int]], follow: Follow, *, most: int = MOST, vocab_size: int = VOCAB) -> None:
        self.host = [TextFollower(np.array(prompt, dtype=np.int64)) for prompt in prompts]
        self._follow, self._most, self._vocab_size = follow, most, vocab_size
        count = len(prompts)
        self.ids = torch.full((count + 1, WIDTH), 7, dtype=torch.int32)
        self.fields = torch.zeros(count + 1, followed_texts.NUM_FIELDS, dtype=torch.int64)
        for row, (text, prompt) in enumerate(zip(self.host, prompts, strict=True)):
            expected = -1 if text.expected is None else text.expected
            at = count - 1 - row
            self.ids[at, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
            self.fields[row] = torch.tensor([at, most, len(prompt), expected])
        self.fields[count] = torch.tensor([-1, most, 3, 1])
        self.rates = torch.tensor([*(text.rate for text in self.host), 1.0], dtype=torch.float64)
        self.tokens = torch.zeros(count + 1, most + 1, dtype=torch.int64)
        self.counts = torch.zeros(count + 1, dtype=torch.int64)

    def propose(self) -> list[list[int]]:
        """Return what is proposed for each text, the same as on the host."""
        proposed = self._follow(
            self.ids,
            self.fields,
            self.rates,
            self.tokens,
            self.counts,
            torch.tensor(find_least_rates(self._most), dtype=torch.float64),
            weight=WEIGHT,
            vocab_size=self._vocab_size,
        )
        *found, without = [[token for token in row if token >= 0] for row in proposed.tolist()]
        assert not without and (proposed.diff(dim=1)[proposed[:, 1:] >= 0] >= -VOCAB).all()
        for row, text in enumerate(self.host):
            assert self.rates[row] == text.rate, "to the last bit"
            assert self.fields[row, EXPECTED] == (-1 if text.expected is None else text.expected)
            assert self.fields[row, LENGTH] == len(text.token_ids)
            own = self.ids[len(self.host) - 1 - row]
            assert own[: len(text.token_ids)].tolist() == text.token_ids and own[len(text.token_ids)] == 7
            assert found[row] == list(text.propose(self._most))[: len(found[row])]
        return found

    def add(self, row: int, token_ids: list[int]) -> None:
        """Let a text go on with tokens when it is asked next."""
        self.host[row].follow(token_ids)
        self.counts[row] = len(token_ids)
        self.tokens[row, : len(token_ids)] = torch.tensor(token_ids)


def go_on(texts: Texts, answers: list[list[int]], num_steps: int) -> tuple[int, int]:
    """Let texts go on with answers, in rounds. Returns how many tokens were proposed, and how many of them accepted."""
    done, num_proposed, num_accepted = [0] * len(answers), 0, 0
    for _ in range(num_steps):
        found = texts.propose()
        for row, (answer, proposed) in enumerate(zip(answers, found, strict=True)):
            assert proposed == list(texts.host[row].propose(MOST)), "as many as the host proposes"
            left = answer[done[row] :]
            num_right = next(
                (i for i, pair in enumerate(zip(proposed, left, strict=False)) if pair[0] != pair[1]), None
            )
            num_right = len(proposed) if num_right is None else num_right
            texts.add(row, left[: num_right + 1])
            done[row] += num_right + 1
            num_proposed, num_accepted = num_proposed + len(proposed), num_accepted + num_right
    return num_proposed, num_accepted


def make_text(rng: random.Random, length: int, vocab: int = VOCAB) -> list[int]:
    return [rng.randrange(vocab) for _ in range(length)]


@ways
def test_texts_are_followed_as_on_the_host(follow: Follow) -> None:
    """Copies with mistakes, texts that go round, such of few tokens, and short ones: what is proposed, rates and places
    are the host's, so that acceptance is, too."""
    rng = random.Random(2)
    prompt = make_text(rng, 5000)
    copy = [token if rng.random() < 0.9 else rng.randrange(VOCAB) for token in prompt[100:400]]
    answers = [copy, [3, 4, 5, 6] * 60, make_text(rng, 200, vocab=3), make_text(rng, 200, vocab=6), [9] * 300]
    prompts = [prompt, [3, 4, 5, 6, 3, 4], [1], [], [8]]
    num_proposed, num_accepted = go_on(Texts(prompts, follow), answers, 20)
    assert num_proposed > num_accepted > 200


@ways
@pytest.mark.parametrize("start", [3, 100, 2045, 2046, 2047, 2048, 2049, 4093, 6000])
def test_the_latest_place_is_found_wherever_it_is(start: int, follow: Follow) -> None:
    rng = random.Random(3)
    prompt = [token + 10 for token in make_text(rng, 7000)]
    prompt[start - 3 : start + 1] = [1, 2, 3, 4]
    prompt[:3] = [1, 2, 3] if start > 6 else prompt[:3]
    texts = Texts([[*prompt, 1, 2]], follow)
    texts.propose()
    texts.add(0, [3])
    assert texts.propose() == [[4, *prompt[start + 1 : start + 2]]]
    assert texts.fields[0, EXPECTED] == start


@ways
def test_few_tokens_are_proposed_where_few_may_be(follow: Follow) -> None:
    texts = Texts([list(range(100)) * 2, [*range(50), 600, *range(50)]], follow)
    texts.rates[0] = texts.host[0].rate = 1.0
    texts.fields[0, followed_texts.MOST] = 2
    texts.rates[1] = texts.host[1].rate = 1.0
    texts.host[1].expected = 47
    texts.fields[1, EXPECTED] = 47
    assert texts.propose() == [[0, 1], [47, 48, 49]], "600 has no logit"


@ways
def test_texts_whose_predictions_fail_propose_nothing(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Texts([list(range(100))], follow)
    for first in (10, 30, 50):
        for token in (first, first + 1, first + 2, 333):
            texts.add(0, [token])
            found = texts.propose()
    for token in (70, 71, 72):
        texts.add(0, [token])
        found = texts.propose()
    assert texts.rates[0] < 0.5 and texts.fields[0, EXPECTED] == 73 and found == [[]]
    monkeypatch.setattr(text_follower, "LEAST_RATE", 0)
    texts.add(0, [73])
    assert texts.propose() == [[74, 75]]


def test_torch_is_taken_where_there_are_no_kernels() -> None:
    text = Texts([[1, 2, 3, 4, 1, 2, 3]], followed_texts._follow)
    tensors = text.ids, text.fields, text.rates, text.tokens, text.counts, torch.tensor([0.5, 0.5])
    assert followed_texts.follow_texts(*tensors, vocab_size=9).tolist() == [[4, 1], [-1, -1]]
