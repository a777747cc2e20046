"""Draws with proposed and with forced tokens: they are the tokens that come without, and each of the likeliest ones is
drawn as often as the model's probabilities say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from eagle_heads import make_head
from pairs import mark_after
from predicting_layers import add_layer

from seesay import EngineConfig, GenerationConfig, Pipeline, Response, pipeline
from seesay.demo import CHECKPOINT
from seesay.engine.core.speculation import draft_model
from seesay.engine.core.speculation.speculation import ModelSpeculation
from seesay.llm.running import launched_step
from seesay.llm.running.sampler import Sampled
from seesay.llm.scheduling import text_follower
from seesay.offline.ordered_answers import collect_answers
from seesay.values.requests import GenerationRequest

NUM_OPTIONS = {"ngram": 3, "draft": 5, "mtp": 5, "eagle3": 5}
"""How many tokens the answers have for each method: few, so that texts repeat themselves."""
METHODS = tuple(NUM_OPTIONS)
OPTIONS = tuple(range(15, 20))
"""These tokens. Digits, in the built-in model."""
TOP_P, TEMPERATURE = 0.9, 2.0
NUM_ANSWERS, NUM_TOKENS = 48, 48
DIGITS = {"type": "regex_schema", "regex_schema": "([0-4]<>)" * (NUM_TOKENS // 3)}


@dataclass(frozen=True)
class Found:
    """Answers of a model, and what it did for them: tokens that were proposed, accepted, and computed at once because
    nothing else was possible."""

    model: Path
    options: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]
    num_proposed: int
    num_accepted: int
    num_jumped: int


def ask(
    model: Path,
    *,
    num_options: int = len(OPTIONS),
    speculative: dict[str, Any] | None = None,
    is_forced: bool = False,
    jump_ahead: bool = False,
) -> Found:
    """Return drawn answers of few tokens: the first of `OPTIONS`, or those of a grammar that forces most of them."""
    options = OPTIONS[:num_options]
    shape: dict[str, Any] = {"logit_bias": dict.fromkeys(options, 100.0), "ignore_eos": True}
    config = GenerationConfig(
        do_sample=True,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        max_new_tokens=NUM_TOKENS,
        **({"response_format": DIGITS} if is_forced else shape),
    )
    with load(model, speculative=speculative, jump_ahead=jump_ahead) as pipe:
        answers = compute(pipe, [(options * 3, replace(config, random_seed=seed)) for seed in range(NUM_ANSWERS)])
        stats = pipe.engine.stats()
    assert all(len(one.token_ids) == NUM_TOKENS for one in answers), answers[0]
    token_ids = tuple(tuple(one.token_ids) for one in answers)
    counts = stats.total_draft_tokens, stats.total_accepted_tokens, stats.total_jumped_tokens
    return Found(model, options, token_ids, *counts)


def load(model: Path, **options: Any) -> Pipeline:
    config = EngineConfig(device_type="cpu", session_len=200, max_batch_size=16, engine_process=False, **options)
    return pipeline(str(model), config)


def compute(pipe: Pipeline, asked: Sequence[tuple[tuple[int, ...], GenerationConfig]]) -> list[Response]:
    requests = [GenerationRequest(prompt=prompt, gen_config=config) for prompt, config in asked]
    answers = collect_answers(pipe.engine, requests, use_tqdm=False)
    assert not (errors := [one.error for one in answers if one.error is not None]), errors
    return answers


def find_chance(found: Found) -> float:
    """Return the chance of draws as far from the probabilities as the drawn tokens: of how many of them are the
    likeliest, the second one and so on, and of how many follow their last three as these were followed before."""
    options, prompt = found.options, found.options * 3
    observed, expected = np.zeros(len(options)), np.zeros(len(options))
    num_repeated, variance = 0.0, 0.0  # less those that are expected
    for token_ids, scores in zip(found.token_ids, score(found.model, options, found.token_ids), strict=True):
        text = prompt + token_ids
        for place, (token_id, logits) in enumerate(zip(token_ids, scores, strict=True), start=len(prompt)):
            if token_id not in options:
                continue  # it was forced
            order = np.argsort(-logits)
            shares = find_shares(logits[order])
            expected += shares
            observed[order.tolist().index(options.index(token_id))] += 1
            before = next((i for i in range(place - 1, 2, -1) if text[i - 3 : i] == text[place - 3 : place]), None)
            if before is not None and text[before] in options:
                share = shares[order.tolist().index(options.index(text[before]))]
                num_repeated += (token_id == text[before]) - share
                variance += share * (1 - share)
    is_used = expected > 5
    assert observed[~is_used].sum() <= 15
    distance = float(((observed - expected)[is_used] ** 2 / expected[is_used]).sum()) + num_repeated**2 / variance
    freedom = torch.tensor(int(is_used.sum()) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(distance / 2, dtype=torch.float64)))


def find_shares(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return probabilities of tokens, the likeliest first."""
    shares = np.exp((logits - logits[0]) / TEMPERATURE)
    shares /= shares.sum()
    shares[np.cumsum(shares) - shares >= TOP_P] = 0
    kept: npt.NDArray[np.float64] = shares / shares.sum()
    return kept


@cache
def score(model: Path, options: tuple[int, ...], answers: tuple[tuple[int, ...], ...]) -> list[npt.NDArray[np.float64]]:
    """Return the logits of `options` behind which each token of each answer came."""
    prompt = options * 3
    config = GenerationConfig(max_new_tokens=1, output_logits="all")
    with load(model) as pipe:
        scored = compute(pipe, [(prompt + token_ids, config) for token_ids in answers])
    return [np.asarray(one.logits, np.float64)[len(prompt) - 1 : -1, list(options)] for one in scored]


@cache
def ask_plainly(
    model: Path, *, num_options: int = len(OPTIONS), is_forced: bool = False
) -> tuple[tuple[int, ...], ...]:
    return ask(model, num_options=num_options, is_forced=is_forced).token_ids


Make = Callable[[str], tuple[Path, dict[str, Any]]]


@pytest.fixture
def make(tiny_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes the model, and the options with which a method proposes for it, whose proposals never rest."""
    monkeypatch.setattr(ModelSpeculation, "pause_tokens", 0)
    monkeypatch.setattr(text_follower, "LEAST_RATE", 0)

    def make(method: str) -> tuple[Path, dict[str, Any]]:
        options: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
        model = Path(CHECKPOINT)
        if method == "draft":
            options["model"] = str(model)
        elif method == "eagle3":
            options["model"] = str(make_head(tmp_path / "head", model))
        elif method == "mtp":
            model = add_layer(tiny_checkpoint("glm4_moe"), tmp_path / "model")
        return model, options

    return make


@pytest.fixture
def proposes_likeliest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models propose their likeliest tokens, and not what they draw."""
    simplify = draft_model._simplify
    monkeypatch.setattr(draft_model, "_simplify", lambda params: replace(simplify(params), greedy=True))


@pytest.mark.usefixtures("proposes_likeliest")
@pytest.mark.parametrize("method", METHODS)
def test_draws_follow_the_probabilities(method: str, make: Make) -> None:
    model, options = make(method)
    found = ask(model, num_options=NUM_OPTIONS[method], speculative=options)
    assert found.token_ids == ask_plainly(model, num_options=NUM_OPTIONS[method])
    assert found.num_proposed > found.num_accepted > NUM_ANSWERS
    assert find_chance(found) > 1e-3


def test_draws_beside_forced_tokens_follow_the_probabilities() -> None:
    found = ask(Path(CHECKPOINT), is_forced=True, jump_ahead=True)
    assert found.token_ids == ask_plainly(Path(CHECKPOINT), is_forced=True)
    assert found.num_jumped >= NUM_ANSWERS * NUM_TOKENS / 3
    assert find_chance(found) > 1e-3


@pytest.mark.usefixtures("proposes_likeliest")
@pytest.mark.parametrize("method", mark_after(2, METHODS))
def test_tokens_that_are_accepted_too_often_are_noticed(
    method: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first test cannot pass where every third proposal is taken that was not drawn."""
    take, count = launched_step.take_choices, iter(range(1 << 30))

    def take_too_many(row: Any, choices: Iterator[Sampled]) -> Any:
        taken = [next(choices) for _ in range(1 + len(row.drafts))]
        if row.drafts and next(count) % 3 == 0:
            taken[0] = taken[0]._replace(token_id=row.drafts[0])
        return take(row, iter(taken))

    monkeypatch.setattr(launched_step, "take_choices", take_too_many)
    model, options = make(method)
    assert find_chance(ask(model, num_options=NUM_OPTIONS[method], speculative=options)) < 1e-6
