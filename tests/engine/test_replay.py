"""Every plan of a run, as bytes, drives a second runner, which must sample the same tokens and have the same state on
its device after each step.

The second runner has weights, KV cache, host cache and row table of its own. All it gets is what another rank would
get: plans, masks, embeddings, and when steps are launched, sampled and collected.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import ask, ask_in_order, count_tokens, held, loop_of, make_conversations, make_video_prompt, parse
from enrolment import (
    ALL_AUDIO,
    BACKBONES,
    COMPOSED,
    ENROLLED,
    OF_MODULES,
    VIDEO_FAMILIES,
    WITH_LATENT_ROWS,
    WITH_STATES,
    list_writers,
)
from llm.device_state import State, read_state
from llm.eager_graphs import record_eagerly
from watched_runner import watched

from seesay.config import EngineConfig
from seesay.engine.core.loading.resolved_config import resolve
from seesay.engine.core.loading.runner_loading import load_runner
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.opened_model import open_model
from seesay.llm.models.decoder import Decoder
from seesay.llm.plans.plan_codec import decode_plan, encode_plan
from seesay.llm.plans.step_plan import StepPlan, TokenMasks
from seesay.llm.running.launched_step import LaunchedStep, StepResult
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.llm.running.splices import PlanSplices
from seesay.values import GenerationRequest, OutputDelta

TEXT_MODELS = ("llama", "mistral", "phi3_longrope")
"""Plain text; a sliding window of 32; frequencies that change at 40 tokens."""
SETUPS: Mapping[str, Mapping[str, Any]] = {
    "chunks and prefixes": {"max_prefill_token_num": 7},
    "preemption": {"enable_prefix_caching": False},
    "host": {"num_cpu_blocks": 500},
    "host, int8": {"num_cpu_blocks": 500, "kv_cache_dtype": "int8"},
}
TIGHT = ("preemption", "host", "host, int8")
IN_ALL_SETUPS = ("llama", "qwen2_5_vl")
THOROUGH = ("phi3_longrope", "qwen3_vl", "gemma3_vision", "llava_onevision")
"""One of each other kind: rows added between layers; sliding windows, and runs of media whose tokens see each other;
arranged rows."""
OTHERS = [name for name in (*TEXT_MODELS, "internlm2", *COMPOSED) if name not in IN_ALL_SETUPS]
MORE_TEXT_MODELS = [name for name in BACKBONES if name not in (*IN_ALL_SETUPS, *OTHERS)]
RUNS = [
    *itertools.product(IN_ALL_SETUPS, ("chunks and prefixes",), (True,)),
    ("llama", "preemption", False),
    ("qwen2_5_vl", "host, int8", True),
    *((name, "host", True) for name in THOROUGH),
]
"""(model, setup, whether steps are launched ahead)."""
SLOW_RUNS = [
    *itertools.product(IN_ALL_SETUPS, ("host",), (True,)),
    *itertools.product(IN_ALL_SETUPS, ("chunks and prefixes", "host"), (False,)),
    *itertools.product(IN_ALL_SETUPS, ("preemption",), (True,)),
    ("qwen2_5_vl", "preemption", False),
    ("llama", "host, int8", True),
    *((name, "host", True) for name in (*OTHERS, *MORE_TEXT_MODELS) if name not in (*THOROUGH, *WITH_STATES)),
    *((name, "chunks and prefixes", True) for name in ALL_AUDIO),
    *((name, "preemption", True) for name in (*OTHERS, *MORE_TEXT_MODELS) if name in WITH_STATES),
    *((name, "preemption", False) for name in OTHERS[0::2]),
    *((name, "host, int8", True) for name in OTHERS[1::2] if name not in (*WITH_STATES, *WITH_LATENT_ROWS)),
]
"""Every family, as each has places and positions of its own for its media."""
NEW_TOKENS, FEW_TOKENS, NUM_SHORT = 24, 16, 8
"""Tokens of answers of `IN_ALL_SETUPS` and of other models; short prompts of a run that preempts."""
SAMPLING: tuple[Mapping[str, Any], ...] = (
    {},
    {"do_sample": True, "temperature": 2.0, "top_p": 0.95},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "logprobs": 2},
    {"do_sample": True, "temperature": 1.5, "random_seed": -3, "presence_penalty": 0.5, "min_p": 0.01},
    {"logit_bias": {7: 4.0}, "bad_token_ids": [5, 9]},
)


@dataclass
class Tape:
    """What happened to a runner, in order: (what, number of the launched step, argument)."""

    events: list[tuple[str, int, Any]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)  # id of a launched step → its number
    kept: list[LaunchedStep] = field(default_factory=list)  # so that ids stay unique
    tokens: dict[int, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)
    embeddings: dict[bytes, torch.Tensor] = field(default_factory=dict)
    num_bytes: int = 0

    def pack(self, plan: StepPlan) -> bytes:
        data = encode_plan(plan)
        self.num_bytes += len(data)
        return data

    def add(self, what: str, launched: LaunchedStep, given: Any = None) -> int:
        """Note what happened to a step, and with what. Returns its number."""
        number = self.numbers[id(launched)]
        self.events.append((what, number, given))
        return number

    def play(self, runner: ModelRunner, *, compares: bool = True) -> dict[int, Mapping[int, tuple[int, ...]]]:
        """Do the same with another runner, whose state must be the same after each step. Returns what it samples, by
        the number of the step."""
        launched: dict[int, LaunchedStep] = {}
        tokens = {}
        for what, number, given in self.events:
            if what == "apply":
                runner.apply(decode_plan(given))
            elif what == "copy":
                runner.copy_blocks(decode_plan(given))
            elif what == "launch":
                plan = decode_plan(given[0])
                splices, errors = runner.find_splices(plan, given[1])
                assert not errors
                launched[number] = runner.launch(plan, splices)
            elif what == "sample":
                runner.sample(launched[number], given)
                assert not compares or read_state(runner) == self.states[number]
            else:
                tokens[number] = launched.pop(number).collect().token_ids
        return tokens


class TapedRunner(ModelRunner):
    """A runner that keeps on `tape` what it is told to do."""

    def __init__(self, decoder: Decoder, limits: RunnerLimits, *, tape: Tape) -> None:
        super().__init__(decoder, limits)
        self._tape = tape

    def apply(self, plan: StepPlan) -> None:
        self._tape.events.append(("apply", -1, self._tape.pack(plan)))
        super().apply(plan)

    def copy_blocks(self, plan: StepPlan) -> None:
        self._tape.events.append(("copy", -1, self._tape.pack(plan)))
        super().copy_blocks(plan)

    def find_splices(self, plan: StepPlan, embeddings: Any) -> PlanSplices:
        for key in [item.hash for row in plan.rows for item in self.rows[row.seq_id].items]:
            if (found := embeddings.get(key)) is not None:
                self._tape.embeddings[key] = found.clone()
        return super().find_splices(plan, embeddings)

    def launch(self, plan: StepPlan, splices: Any) -> LaunchedStep:
        tape, launched = self._tape, super().launch(plan, splices)
        number = tape.numbers[id(launched)] = len(tape.numbers)
        tape.kept.append(launched)
        tape.events.append(("launch", number, (tape.pack(plan), dict(tape.embeddings))))
        return launched

    def sample(self, launched: Any, masks: TokenMasks | None = None, *others: Any, **options: Any) -> None:
        kept = None if masks is None else replace(masks, bits=masks.bits.copy())  # its memory is used again
        number = self._tape.add("sample", launched, kept)
        super().sample(launched, masks, *others, **options)
        self._tape.states[number] = read_state(self)

    def collect(self, launched: LaunchedStep) -> StepResult:
        result = super().collect(launched)
        number = self._tape.add("collect", launched)
        assert not result.errors, result.errors
        self._tape.tokens[number] = result.token_ids
        return result


def load_followers(path: Path, config: EngineConfig, number: int) -> list[ModelRunner]:
    """Load the model again for runners that play a tape; they have no cache yet."""
    model = open_model(path, config)
    resolved = resolve(config, model.checkpoint, model.backbone)
    max_step_tokens = config.max_prefill_token_num + max(0, model.backbone.media_run - 1)
    return [
        load_runner(model, resolved, max_step_tokens=max_step_tokens, block_size=config.block_size)
        for _ in range(number)
    ]


def ask_and_leave(engine: AsyncEngine, requests: list[GenerationRequest]) -> None:
    """Ask, and abort every second request at its first, second, … token."""
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    with held(engine):
        ids = engine.submit_batch(requests, arrived.put)
    left = {request_id: 1 + index for index, request_id in enumerate(ids[::2])}
    num_tokens, num_live = dict.fromkeys(ids, 0), len(ids)
    while num_live:
        delta = arrived.get(timeout=60)
        num_tokens[delta.request_id] += len(delta.token_ids)
        if delta.finish_reason is not None:
            num_live -= 1
        elif delta.request_id in left and num_tokens[delta.request_id] >= left[delta.request_id]:
            engine.abort(delta.request_id)


def test_every_family_is_replayed() -> None:
    names = {name for name, _, _ in (*RUNS, *SLOW_RUNS)}
    replayed = {ENROLLED[name] for name in names}
    one_loaded = {ENROLLED[name] for name in OF_MODULES} - replayed  # runners of one family would share its modules
    assert replayed == set(list_writers().values()) - one_loaded


@pytest.mark.parametrize(
    ("name", "setup", "is_ahead"), [*RUNS, *(pytest.param(*run, marks=pytest.mark.slow) for run in SLOW_RUNS)]
)
def test_a_second_runner_samples_the_same_from_plans_as_bytes(
    name: str,
    setup: str,
    is_ahead: bool,
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    """And so does a third one, whose decode steps go the way of CUDA graphs."""
    options: dict[str, Any] = {"device_type": "cpu", "block_size": 4, "async_scheduling": is_ahead, **SETUPS[setup]}
    conversations = [*make_conversations(name), *([make_video_prompt(name)] if name in VIDEO_FAMILIES else [])]
    num_tokens = NEW_TOKENS if name in IN_ALL_SETUPS else FEW_TOKENS
    asked = parse(conversations, max_new_tokens=num_tokens, ignore_eos=True)
    longest = max(count_tokens(tiny_checkpoint(name), asked)) + num_tokens
    if setup in TIGHT:
        options["num_gpu_blocks"] = -(-longest // 4) + 2
    tape, config = Tape(), EngineConfig(**options)
    make = partial(TapedRunner, tape=tape)
    with AsyncEngine(str(tiny_checkpoint(name)), backend_config=config, core_parts=watched(make)) as engine:
        first, followers = loop_of(engine)._runner, load_followers(tiny_checkpoint(name), config, 2)
        for runner in followers:
            runner.limits = replace(runner.limits, max_batch_size=16, session_len=longest)
            num_host_slots = options.get("num_cpu_blocks", 0)
            runner.allocate_cache(num_blocks=first.num_blocks, share=0.5, num_host_slots=num_host_slots)
        graph_steps = record_eagerly(followers[1])
        requests = []
        for index in range(max(len(asked), len(SAMPLING))):
            request, sampling = asked[index % len(asked)], SAMPLING[index % len(SAMPLING)]
            requests.append(replace(request, gen_config=replace(request.gen_config, **sampling)))
        if setup in TIGHT:  # short ones fit beside each other when they begin, and not when they end
            requests += [requests[1]] * NUM_SHORT
        for output in ask_in_order(engine, requests):
            assert output.error is None, output.error
        ask_and_leave(engine, requests)
        for output in ask(engine, requests):
            assert output.error is None, output.error
        stats = engine.stats()
    for runner in followers:
        assert tape.play(runner) == tape.tokens
        assert {row.seq_id for row in runner.rows} == {row.seq_id for row in first.rows}
    assert len(graph_steps) > 20
    assert len(tape.tokens) > 60 and sum(map(len, tape.tokens.values())) > 4 * num_tokens
    launches = [number for what, number, _ in tape.events if what == "launch"]
    is_behind = any(
        what == "launch" and tape.events[index + 2][:2] == ("collect", number - 1)
        for index, (what, number, _) in enumerate(tape.events[:-2])
    )
    assert launches == sorted(launches) and is_behind == is_ahead, "steps are launched ahead of a commit, or not"
    if setup in TIGHT:
        assert stats.total_preemptions > 0
    if "host" in setup:
        assert stats.total_host_kv_loads > 0
    if setup != "preemption":
        assert stats.total_prefix_hit_tokens > 0


@pytest.mark.parametrize(("setup", "is_ahead"), [("chunks and prefixes", True), ("preemption", False)])
def test_a_second_runner_jumps_where_the_first_one_does(
    setup: str, is_ahead: bool, tiny_checkpoint: Callable[[str], Path]
) -> None:
    options: dict[str, Any] = {"device_type": "cpu", "block_size": 4, "async_scheduling": is_ahead, **SETUPS[setup]}
    asked = parse(make_conversations("llama"), max_new_tokens=40)
    if setup in TIGHT:
        options["num_gpu_blocks"] = -(-(max(count_tokens(tiny_checkpoint("llama"), asked)) + 40) // 4) + 4
    form = {"type": "regex_schema", "regex_schema": "(the colour is (red|gold); ){2}"}
    tape, path, config = Tape(), tiny_checkpoint("llama"), EngineConfig(**options)
    make = partial(TapedRunner, tape=tape)
    with AsyncEngine(str(path), backend_config=config, core_parts=watched(make)) as engine:
        first, followers = loop_of(engine)._runner, load_followers(path, config, 2)
        for runner in followers:
            runner.limits = replace(runner.limits, max_batch_size=first.limits.max_batch_size)
            runner.allocate_cache(num_blocks=first.num_blocks, share=0.5)
        graph_steps = record_eagerly(followers[1])
        requests = []
        for index in range(6):
            request, sampling = asked[index % len(asked)], SAMPLING[index % 2]
            held_to = None if index == 5 else form
            requests.append(
                replace(request, gen_config=replace(request.gen_config, response_format=held_to, **sampling))
            )
        for output in ask(engine, requests):
            assert output.error is None, output.error
        stats = engine.stats()
    assert stats.total_jumped_tokens > 20 and (setup not in TIGHT or stats.total_preemptions > 0)
    for runner in followers:
        assert tape.play(runner) == tape.tokens
    assert graph_steps
    assert max(len(token_ids) for tokens in tape.tokens.values() for token_ids in tokens.values()) > 3


def test_a_follower_whose_plan_is_changed_samples_something_else(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    """The comparison can fail: a token of a prompt, or a block of a table, decides what is sampled."""
    path, config = tiny_checkpoint("llama"), EngineConfig(device_type="cpu", block_size=4)
    tape, runners = Tape(), load_followers(path, config, 3)
    make = partial(TapedRunner, tape=tape)
    with AsyncEngine(str(path), backend_config=config, core_parts=watched(make)) as engine:
        requests = parse(make_conversations("llama"), max_new_tokens=NEW_TOKENS, ignore_eos=True)
        ask(engine, requests)
        for runner in runners:
            runner.allocate_cache(num_blocks=loop_of(engine)._runner.num_blocks, share=0.5)
    assert tape.play(runners[0]) == tape.tokens
    events = []
    for what, number, given in tape.events:
        if what == "apply" and (plan := decode_plan(given)).begun:
            token_ids = plan.begun[0].token_ids.copy()
            token_ids[-1] += 1
            begun = (replace(plan.begun[0], token_ids=token_ids), *plan.begun[1:])
            given = encode_plan(replace(plan, begun=begun))
        events.append((what, number, given))
    assert Tape(events=events).play(runners[1], compares=False) != tape.tokens
    with pytest.raises(AssertionError):
        Tape(events=events, states=tape.states).play(runners[2])
