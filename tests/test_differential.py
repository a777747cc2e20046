"""Random requests through the real loop, beside each other, aborted and with faults: each answer is that of the request
alone. The loop is a thread, or a process of its own. Setups with each method of speculation are drawn at random. A
short run by default; `pytest tests/test_differential.py --requests 20000` is a long one."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from differential import (
    Asked,
    Question,
    Setup,
    World,
    check_answers,
    lengthen,
    make_questions,
    write_adapters,
    write_own_feed_forwards,
)
from faults import RATES, Faults
from llm.backbones import Backbone, make_backbone
from proposing import METHODS, write_predicting_layer, write_proposer

from seesay.llm.memory.kv_layout import KVFormat

DEFAULT_REQUESTS = 2000
NUM_QUESTIONS = 120
OF_TOWER = {"encode": 0.5, "slow tower": 0.3, "late message": 0.3}
"""Faults of the tower alone: a step that fails on one of several ranks ends the model."""
SETUPS = {
    "sync": Setup(num_blocks=30),
    "sync, host": Setup(masks_beside=True, adapter_slots=1, num_blocks=24, num_host_slots=40, chunk=16),
    "ahead, host, tiny": Setup(is_ahead=True, num_blocks=2, num_host_slots=8, chunk=4, max_live=1),
    "ahead": Setup(masks_beside=True, adapter_slots=2, is_ahead=True, num_blocks=30, chunk=24, embedding_bytes=0),
    "ahead, host": Setup(
        is_ahead=True, masks_beside=True, num_blocks=24, num_host_slots=40, chunk=16, embedding_bytes=2000
    ),
    "timed": Setup(num_blocks=30, max_step_s=0.001),
    "ahead, host, timed": Setup(adapter_slots=2, is_ahead=True, num_blocks=24, num_host_slots=40, max_step_s=0.004),
    "ahead, pictures": Setup(
        is_ahead=True,
        caching=False,
        embedding_bytes=0,
        share_left=0.7,
        few_pictures=True,
        max_live=2,
        rates={**RATES, "encode": 0.4, "slow tower": 1.0, "late message": 1.0},
    ),
    "ahead, lends": Setup(
        is_ahead=True, lends=True, embedding_bytes=2000, few_pictures=True, rates={**RATES, "encode": 0.2}
    ),
    "graphs, host": Setup(adapter_slots=1, eager_graphs=True, num_blocks=20, num_host_slots=40, chunk=16, max_live=3),
    "graphs, ahead": Setup(
        masks_beside=True, adapter_slots=3, eager_graphs=True, is_ahead=True, num_blocks=20, max_live=3
    ),
    "ranks, host": Setup(num_ranks=2, num_blocks=20, num_host_slots=40, chunk=16, rates=OF_TOWER),
    "ranks, ahead, graphs": Setup(
        masks_beside=True,
        adapter_slots=2,
        num_ranks=2,
        is_ahead=True,
        eager_graphs=True,
        num_blocks=30,
        max_live=3,
        chunk=24,
        rates=OF_TOWER,
    ),
    "drafts": Setup(num_blocks=30, drafts=5, chunk=24),
    "drafts, ahead, host": Setup(
        masks_beside=True, adapter_slots=2, is_ahead=True, num_blocks=24, num_host_slots=40, chunk=16, drafts=15
    ),
    "drafts, ranks": Setup(num_ranks=2, is_ahead=True, num_blocks=30, chunk=24, drafts=3, rates=OF_TOWER),
    "drafts, graphs, ahead": Setup(eager_graphs=True, is_ahead=True, num_blocks=20, max_live=3, drafts=4),
    "process": Setup(own_process=True, num_blocks=30, chunk=24),
    "process, ahead, host": Setup(
        adapter_slots=1,
        own_process=True,
        is_ahead=True,
        num_blocks=24,
        num_host_slots=40,
        chunk=16,
        embedding_bytes=2000,
    ),
    "delta net, host": Setup(
        backbone="qwen3.5", adapter_slots=1, num_blocks=24, num_host_slots=40, chunk=16, num_states=5
    ),
    "delta net, ahead, graphs": Setup(
        backbone="qwen3.5", adapter_slots=2, is_ahead=True, eager_graphs=True, num_blocks=20, max_live=3, num_states=3
    ),
    "delta net, ranks": Setup(backbone="qwen3-next", num_ranks=2, num_blocks=30, chunk=24, rates=OF_TOWER),
    "state space, ahead, host": Setup(
        backbone="granite-hybrid", is_ahead=True, num_blocks=24, num_host_slots=40, chunk=16, num_states=6
    ),
    "state space beside, ahead": Setup(backbone="falcon-h1", is_ahead=True, num_blocks=20, chunk=24, num_states=9),
    "first state space, ahead": Setup(backbone="jamba", is_ahead=True, num_blocks=30, chunk=24),
    "halves of layers, ahead, host": Setup(
        backbone="nemotron-h-moe", is_ahead=True, num_blocks=24, num_host_slots=40, chunk=16, num_states=5
    ),
    "convolution, ahead, host": Setup(backbone="lfm2", is_ahead=True, num_blocks=24, num_host_slots=40, chunk=16),
    "own feed-forwards of pictures, ahead, host": Setup(
        backbone="llama, pictures apart", is_ahead=True, num_blocks=24, num_host_slots=40, chunk=16
    ),
    "own feed-forwards of pictures, graphs, drafts": Setup(
        backbone="llama, pictures apart", eager_graphs=True, num_blocks=20, max_live=3, chunk=24, drafts=4
    ),
    "latent rows of 8 bits, ahead, host": Setup(
        backbone="deepseek-v2", kv_format="int8", is_ahead=True, num_blocks=24, num_host_slots=40, chunk=16
    ),
    "latent rows, ahead, host": Setup(
        backbone="deepseek-v2", is_ahead=True, num_blocks=24, num_host_slots=40, chunk=16, drafts=5
    ),
}
WITH_ROUNDS = {
    f"rounds, {method} {number}": Setup(
        method=method,
        drafts=drafts,
        has_rounds=True,
        has_long=True,
        eager_graphs=True,
        backbone=backbone,
        is_ahead=number % 2 == 0,
        num_blocks=num_blocks,
        num_host_slots=40,
        max_live=max_live,
        chunk=24,
    )
    for number, (method, drafts, backbone, num_blocks, max_live) in enumerate(
        [
            ("ngram", 4, "qwen2", 60, 2),
            ("eagle3", 3, "qwen2", 60, 3),
            ("ngram", 7, "qwen2", 24, 3),
            ("eagle3", 5, "llama", 30, 2),
        ]
    )
}
"""Setups whose steps propose and verify several times before the host sees the tokens."""
SETUPS |= WITH_ROUNDS
APART = ", pictures apart"
"""Behind the names of backbones in which the rows of pictures have feed-forwards of their own."""
PREDICTING = " that predicts"
"""Behind the names of backbones with a layer for that."""
SPECULATIVE_BACKBONES = {
    "ngram": ("qwen2", "qwen3.5", "lfm2"),
    "draft": ("qwen2", "deepseek-v2"),
    "mtp": (f"glm4-moe{PREDICTING}", f"qwen3.5{PREDICTING}"),
    "eagle3": ("qwen2", "qwen3.5", "llama"),
}
ADAPTED_BACKBONES = ("qwen2", "qwen3.5", "llama")
NUM_DRAWN, NUM_ALWAYS_DRAWN = 32, 8
"""Setups with speculation; the others are slow tests."""


def draw_setup(seed: int) -> Setup:
    """Return a setup whose rows propose tokens, by one method after another."""
    rng = random.Random(seed)
    method = METHODS[seed % len(METHODS)]
    names = SPECULATIVE_BACKBONES[method]
    backbone = names[seed // len(METHODS) % len(names)]
    divides = method in ("ngram", "draft") and backbone == "qwen2" and rng.random() < 0.3
    return Setup(
        method=method,
        drafts=rng.choice((2, 4, 7, 15)),
        has_long=True,
        backbone=backbone,
        is_ahead=rng.random() < 0.5,
        num_blocks=rng.choice((20, 24, 24, 60)),
        num_host_slots=rng.choice((0, 40)),
        chunk=rng.choice((10, 16, 24, 64)),
        max_live=rng.choice((3, 5, 8)),
        adapter_slots=rng.choice((0, 1, 2)) if backbone in ADAPTED_BACKBONES else 0,
        kv_format=rng.choice(("plain", "plain", "int8", "int4")) if backbone == "qwen2" else "plain",
        eager_graphs=rng.random() < 0.3,
        caching=rng.random() < 0.8,
        num_states=rng.choice((0, 5)) if backbone.startswith(("qwen3.5", "lfm2")) else 0,
        max_step_s=rng.choice((None, None, 0.004)),
        num_ranks=2 if divides else 1,
        rates=OF_TOWER if divides else RATES,
        masks_beside=seed % 2 == 1,
    )


for number in range(NUM_DRAWN):
    SETUPS[f"speculation {number}, {draw_setup(number).method}"] = draw_setup(number)
SLOW_SETUPS = (
    "process",
    *tuple(WITH_ROUNDS)[2:],
    "state space beside, ahead",
    "first state space, ahead",
    *tuple(SETUPS)[NUM_ALWAYS_DRAWN - NUM_DRAWN :],
)
"""The other engine process does more of this at once, and the other state space runs through the same code."""
NUM_SETUPS = len(SETUPS) - NUM_DRAWN + NUM_ALWAYS_DRAWN
WITH_ADAPTERS = tuple(dict.fromkeys(setup.backbone for setup in SETUPS.values() if setup.adapter_slots))
cuda = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
)


@pytest.fixture(scope="module")
def get_backbone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Backbone]:
    """Return a backbone by its name. Each is made once."""

    @cache
    def get(name: str) -> Backbone:
        plain = name.removesuffix(PREDICTING).removesuffix(APART)
        made = make_backbone(plain, tmp_path_factory.mktemp("backbone"))
        if name.endswith(APART):
            write_own_feed_forwards(made.path)
        if name.endswith(PREDICTING):
            made = replace(made, path=write_predicting_layer(made.path, plain))
        if name in WITH_ADAPTERS:
            write_adapters(made.path)
        for method in {setup.method for setup in SETUPS.values() if setup.backbone == name and setup.drafts}:
            write_proposer(made.path, method)
        return made

    return get


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return make_questions(random.Random(7), NUM_QUESTIONS)


@pytest.fixture(scope="module", params=["cpu", cuda])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ask_alone(
    get_backbone: Callable[[str], Backbone], questions: list[Question], device: str
) -> Callable[[str, KVFormat, bool], dict[Question, Asked]]:
    """Return each question's answer of a backbone when nothing else is there, nothing is cached, nothing fails, and
    each step computes one token."""

    @cache
    def ask(name: str, kv_format: KVFormat, has_long: bool) -> dict[Question, Asked]:
        slots = int(name in WITH_ADAPTERS)
        setup = Setup(
            backbone=name,
            kv_format=kv_format,
            device=device,
            caching=False,
            max_live=1,
            jumps=False,
            adapter_slots=slots,
        )
        world = World(get_backbone(name), setup, Faults())
        try:
            possible = [lengthen(question) if has_long else question for question in questions]
            asked = world.ask([(question, None) for question in possible if setup.takes(question)], random.Random(0))
            world.check_idle()
        finally:
            world.close()
        return {one.question: one for one in asked.values()}

    return ask


@pytest.fixture
def quick_threads() -> Iterator[None]:
    """Threads take turns as quickly as beside a GPU."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW_SETUPS else ()) for name in SETUPS]
)
@pytest.mark.usefixtures("quick_threads")
def test_answers_equal_those_of_the_request_alone(
    name: str,
    device: str,
    get_backbone: Callable[[str], Backbone],
    questions: list[Question],
    ask_alone: Callable[[str, KVFormat, bool], dict[Question, Asked]],
    pytestconfig: pytest.Config,
) -> None:
    if SETUPS[name].own_process:
        pytest.importorskip("msgspec")
        pytest.importorskip("zmq")
    if SETUPS[name].num_ranks > 1 and device != "cpu":
        pytest.skip("threads cannot meet within a CUDA graph")
    if SETUPS[name].has_rounds and device != "cpu":
        pytest.skip("the host's proposals are no part of a CUDA graph")
    num_requests = (pytestconfig.getoption("requests") or DEFAULT_REQUESTS) // NUM_SETUPS
    seed = list(SETUPS).index(name)
    rng = random.Random(seed)
    faults = Faults(rates=SETUPS[name].rates, seed=seed)
    alone = ask_alone(SETUPS[name].backbone, SETUPS[name].kv_format, SETUPS[name].has_long)
    world = World(
        get_backbone(SETUPS[name].backbone),
        Setup(**{**vars(SETUPS[name]), "device": device, "has_tenants": True}),
        faults,
    )
    possible = [question for question in alone if world.setup.takes(question)]
    proposals = None if SETUPS[name].own_process else world.engine.proposals
    if proposals is not None:
        for question in possible:
            proposals.learn(question.make_prompt().token_ids.tolist() + alone[question].token_ids)
    asked_for = [rng.choice(possible)]
    while len(asked_for) < num_requests:  # several answers to one question now and then
        asked_for.append(asked_for[-1] if rng.random() < 0.4 else rng.choice(possible))
    chosen = [
        (question, rng.choice((0, 0, 1, 4)) if rng.random() < world.setup.share_left else None)
        for question in asked_for
    ]
    try:
        asked = world.ask(chosen, rng)
        world.check_idle()
    finally:
        world.close()
    print(f"{name}: {len(asked)} requests, faults {faults.counts}, {world.core.stats()}")
    print(world.setup, None if proposals is None else proposals.counts)
    check_answers(asked, alone, faults)
    is_eager = world.setup.eager_graphs and device == "cpu"
    # Rows whose drafts are right end in few steps; how many of these are of graphs depends on which rows run together.
    assert not is_eager or len(world.engine.graph_steps) > (0 if world.setup.has_long else num_requests / 10)
    assert len(asked) == num_requests
    assert not world.setup.has_rounds or count_rounds(world) > num_requests / 8
    # With graphs, few jumps save enough steps; how many depends on which rows happen to run together.
    jumps_rarely = world.setup.eager_graphs or world.setup.drafts or device != "cpu" or world.setup.num_blocks < 10
    assert world.core.stats().total_jumped_tokens or num_requests < 100 or jumps_rarely
    stats = world.core.stats()
    assert not world.setup.drafts or stats.total_accepted_tokens > 0
    assert stats.total_accepted_tokens < stats.total_draft_tokens or num_requests < 100 or not world.setup.drafts
    assert faults.counts or num_requests < 100 or world.setup.max_live == 1  # steps of one row are spared mostly


def count_rounds(world: World) -> int:
    """Return how many rounds the steps of a world had."""
    rounds: Any = world.engine.runner.rounds
    return int(rounds._proposer.num_rounds)
