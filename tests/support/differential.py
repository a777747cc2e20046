"""A real engine loop under random load and injected faults, for the differential test.

Everything that decides an answer is real: loop, scheduler, runner, sampler, host cache, embedding store and encoder
worker. The tower is fake (its embeddings depend on the picture's number alone) and the decoder is tiny and random.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from adapter_folders import write_adapter
from faults import RATES, Faults, Injected, inject_into
from llm.backbones import VOCAB, Backbone
from llm.eager_graphs import record_eagerly
from llm.fake_engine import check_row_table
from proposing import Proposals, make_proposals, name_model
from safetensors.torch import load_file, save_file
from thread_followers import ThreadFollowers, make_led_runner

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.adapter_folder import AdapterFolder
from seesay.config import EngineConfig, VisionConfig
from seesay.config.grammar import Grammar
from seesay.device.ranks import Ranks
from seesay.encoders.store import Lookup
from seesay.engine.core.adapters import AdapterControl, AdapterStore, load_adapters, make_slots
from seesay.engine.core.grammars.jumps import JumpRule
from seesay.engine.core.loop import EngineLoop
from seesay.engine.engine_core import EngineCore
from seesay.engine.token_messages import TokenOutput, TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.grammars.masks import CompiledGrammars
from seesay.grammars.program import make_program
from seesay.llm.memory.kv_layout import KVFormat
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.models.spec import MediaRowsSpec
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.plans.step_times import StepTimes
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.state_slots import SnapshotPlaces, StateSlots
from seesay.llm.scheduling.step_policy import StepPolicy, TimedSteps
from seesay.values import MediaItem, Modality, MultimodalInput
from seesay.values.prompt_logprobs import PromptLogprobs

HIDDEN = 60
SESSION_LEN = 96
NUM_PICTURES = 6
ADAPTERS = {"all": r".*(self_attn|mlp)\.\w+_proj", "query": r".*\.q_proj", "down": r".*layers\.[12]\.mlp\.down_proj"}
"""The modules that adapters change, by their names."""
BEGINNINGS = (0, 0, 4, 4, 4, 9, 17)
"""Lengths of the texts with which prompts begin."""
MEDIA = ".media."
"""In the names of tensors that compute the rows of pictures."""
TIMEOUT_S = 60
NUM_SILENT = 43
"""The first tokens stand in no text; among them are those that end an answer."""
PIECES = [*(f"{first}{second}" for first in "abcde" for second in "abcde"), "abc", "cde", "dea", "eab", "abcde"]
TEXTS = [*("" for _ in range(NUM_SILENT)), *"abcdefghij", *PIECES]
TOKENS = [text.encode() for text in TEXTS] + [b""] * (VOCAB - len(TEXTS))
REGEXES = ("abcdeabcdf[a-d]{1,3}edcba", "(abcde[gh]edcbag(abcdi)?){1,3}", "[a-e]{2,5}fghijabcdea")
"""Answers of which much is forced. Their parts can be cut into tokens in several ways."""


def write_own_feed_forwards(folder: Path) -> None:
    """Give the rows of pictures feed-forwards of their own, in a checkpoint of a Llama or Qwen2."""
    state = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(2)
    for name, tensor in [(name, tensor) for name, tensor in state.items() if ".mlp." in name]:
        state[name.replace(".mlp.", f"{MEDIA}mlp.")] = 0.2 * torch.randn(tensor.shape, generator=generator)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


# --- questions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A prompt of one of `BEGINNINGS`, pictures and a text, with sampling options, for the model with one of
    `ADAPTERS` or none. Equal ones have equal answers."""

    beginning: int
    pictures: tuple[int, ...]
    tail: int
    params: SamplingParams
    grammar: Grammar | None = None
    adapter: str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and the longest answer."""
        num_media_tokens = sum(2 + number for number in self.pictures)
        return BEGINNINGS[self.beginning] + num_media_tokens + 1 + self.tail % 6 + self.params.max_new_tokens

    def make_prompt(self) -> MultimodalInput:
        token_ids = make_text(self.beginning, BEGINNINGS[self.beginning])
        items = []
        for number in self.pictures:
            start, rows = len(token_ids) + 1, 1 + number
            token_ids += [3] + [0] * rows
            items.append(make_item(number, start, rows))
        token_ids += make_text(100 + self.tail, 1 + self.tail % 6)
        return MultimodalInput(
            token_ids=np.array(token_ids),
            positions=np.arange(len(token_ids)),
            next_position=len(token_ids),
            items=tuple(items),
        )


def make_text(seed: int, length: int) -> list[int]:
    token_ids: list[int] = np.random.default_rng(seed).integers(3, VOCAB, length).tolist()
    return token_ids


def make_item(number: int, start: int, rows: int) -> MediaItem:
    return MediaItem(
        modality=Modality.AUDIO if number % 3 == 2 else Modality.IMAGE,
        span=(start, start + rows),
        slots=np.arange(start, start + rows),
        hash=number.to_bytes(32, "little"),
        features={"number": number, "rows": rows},
        num_units=rows,
    )


def make_questions(rng: random.Random, number: int) -> list[Question]:
    """Two thirds of them have no adapter."""
    adapters = random.Random(number)
    return [
        replace(_make_question(rng), adapter=adapters.choice(list(ADAPTERS)) if adapters.random() < 1 / 3 else None)
        for _ in range(number)
    ]


def lengthen(question: Question) -> Question:
    """Return a question whose answer is long."""
    params = question.params
    is_free = question.grammar is None
    return replace(question, params=replace(params, max_new_tokens=max(24, params.max_new_tokens), ignore_eos=is_free))


def _make_question(rng: random.Random) -> Question:
    """Few beginnings, pictures and tails, so that much is shared."""
    if rng.random() < 0.3:  # a few tokens, so that the smallest cache takes them
        params = SamplingParams(max_new_tokens=rng.choice((1, 2, 3)), eos_token_ids=tuple(range(3, 43)))
        return Question(rng.randrange(5), (), rng.choice((0, 1, 2, 6, 7, 8, 12, 13, 14)), params)
    pictures = tuple(rng.randrange(NUM_PICTURES) for _ in range(rng.choice((0, 0, 0, 1, 1, 2))))
    options: dict[str, Any] = {
        "max_new_tokens": rng.choice((1, 3, 6, 12)),
        "eos_token_ids": tuple(range(3, 15)),
        "ignore_eos": rng.random() < 0.5,
    }
    kind = rng.choice(("greedy", "greedy", "greedy", "drawn", "penalized", "scored"))
    grammar = None
    if rng.random() < 0.3:
        grammar = make_program(Grammar(kind="regex", source=rng.choice(REGEXES)))
        options |= {"max_new_tokens": rng.choice((3, 9, 16, 30)), "ignore_eos": False}
    if kind == "drawn":
        options |= {"greedy": False, "temperature": 2.0, "top_p": 0.95, "seed": rng.randrange(3)}
    elif kind == "penalized":
        options |= {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "min_new_tokens": 2}
    elif kind == "scored":
        options |= {"prompt_logprobs": 2, "logprobs": 2}
    return Question(rng.randrange(len(BEGINNINGS)), pictures, rng.randrange(12), SamplingParams(**options), grammar)


def spell(text: str) -> list[int]:
    """The tokens of a text, the longest one at each place."""
    token_ids = list[int]()
    while text:
        token_ids.append(max(range(NUM_SILENT, len(TEXTS)), key=lambda i: len(TEXTS[i]) * text.startswith(TEXTS[i])))
        text = text[len(TEXTS[token_ids[-1]]) :]
    return token_ids


def write_adapters(checkpoint: Path) -> None:
    """Write `ADAPTERS` beside a checkpoint."""
    for seed, (name, modules) in enumerate(ADAPTERS.items()):
        write_adapter(checkpoint, _folder_of(checkpoint, name), modules, seed=seed)


def _folder_of(checkpoint: Path, adapter: str) -> Path:
    return checkpoint.with_name(f"{checkpoint.name} adapters") / adapter


# --- the loop ---------------------------------------------------------------------------------------------------------


class FakeTower:
    """Embeds picture n in random rows of its own."""

    def __init__(self, device: torch.device, faults: Faults) -> None:
        self.device = device
        self.sizes: list[int] = []  # of the calls
        self._faults = faults

    def disable_graphs(self) -> None:
        pass

    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
        self._faults.linger("slow tower")
        self.sizes.append(len(features))
        try:
            self._faults.strike("encode")
        except Injected:
            if len(features) == 1:
                self._faults.failed_pictures.append((features[0]["number"], time.monotonic()))
            raise
        packed = torch.cat([make_embedding(f["number"], f["rows"]) for f in features]).to(self.device)
        return list(torch.split(packed, [f["rows"] for f in features]))


@cache
def make_embedding(number: int, rows: int) -> torch.Tensor:
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(number))


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a loop is configured. max_live: requests in it at the same time. share_left: of the requests, those for whose
    answer nobody waits to the end. few_pictures: all have pictures, of which there are two. rates: of faults.
    max_step_s: size steps by time, at least 2 prompt tokens; None does not. own_process: the loop is in another one.
    eager_graphs: on the CPU, decode steps take the path of CUDA graphs. lends: on the CPU, steps may read embeddings
    whose tower call is not over, as on a GPU that rested when it began. has_tenants: requests have priorities, and some
    questions a cache of their own. jumps: forced text is computed several tokens at a time. drafts: most tokens that a
    row proposes by `method`, of which many are wrong. has_rounds: steps of graphs may propose by themselves. has_long:
    answers are long. kv_format: of the cache. num_ranks: so many threads compute the decoder together; no step may fail
    in them. adapter_slots: adapters that may be in use at a time; 0: no question has one. backbone: a name of
    `BACKBONES`. num_states: slots of states, where its layers have any; 0: as many as the runner chooses. masks_beside:
    a thread makes all masks while the next step is planned."""

    device: str = "cpu"
    is_ahead: bool = False
    num_blocks: int = 400
    num_host_slots: int = 0
    block_size: int = 4
    chunk: int = 64
    caching: bool = True
    embedding_bytes: int = 1 << 20
    max_live: int = 8
    share_left: float = 0.25
    few_pictures: bool = False
    rates: Mapping[str, float] = field(default_factory=lambda: RATES)
    max_step_s: float | None = None
    own_process: bool = False
    eager_graphs: bool = False
    lends: bool = False
    has_tenants: bool = False
    jumps: bool = True
    drafts: int = 0
    method: str = "ngram"
    has_rounds: bool = False
    has_long: bool = False
    kv_format: KVFormat = "plain"
    num_ranks: int = 1
    adapter_slots: int = 0
    backbone: str = "qwen2"
    num_states: int = 0
    masks_beside: bool = False

    def takes(self, question: Question) -> bool:
        fits = question.num_tokens <= min(self.num_blocks * self.block_size, SESSION_LEN)
        fits = fits and (question.adapter is None or self.adapter_slots > 0)
        return fits and (not self.few_pictures or (bool(question.pictures) and max(question.pictures) < 2))


@dataclass
class Asked:
    """A request on its way. `leaves_after`: tokens after which nobody waits for it any more, if ever."""

    question: Question
    leaves_after: int | None
    asked_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: PromptLogprobs | None = None
    final: TokenOutput | None = None


class _OneByOne(JumpRule):
    """Forced tokens are computed in a step of their own."""

    def choose(self, num_rows: int, found: Mapping[int, tuple[int, ...]]) -> Mapping[int, tuple[int, ...]]:
        return {}


class _Group(NamedTuple):
    """Questions that are asked one after another and are the same. stays: the blocks of their prompt are kept."""

    question: Question | None = None
    group_id: int = 0
    stays: bool = False


def lend_before_the_end(worker: Any, end: Callable[[Any], bool]) -> None:
    """Let steps read the embeddings of `worker` before the call of the tower that made them ends: in `end`, which
    returns whether it failed, and then has said so."""
    finish = worker._finish

    def lend_and_finish(launched: Any) -> None:
        worker._lend(launched)
        if not end(launched):
            finish(launched)

    worker._finish = lend_and_finish


class Engine:
    """A loop with everything behind it, and faults in it."""

    def __init__(self, path: Path, setup: Setup, faults: Faults) -> None:
        checkpoint = Checkpoint.load(path)
        config = checkpoint.model_config
        device = torch.device(setup.device)
        self.setup, self.faults = setup, faults
        splits_rows = any(MEDIA in name for name in checkpoint.tensor_names())
        decoder_config = read_decoder_config(
            checkpoint.text_config,
            tied_embeddings=bool(config.tie_word_embeddings),
            session_len=SESSION_LEN,
            media_rows=MediaRowsSpec(reach="feed_forward") if splits_rows else None,
        )

        def load(ranks: Ranks | None) -> ComposedDecoder:
            return ComposedDecoder.load(
                checkpoint,
                decoder_config,
                decoder_name=name_model(checkpoint),
                device=device,
                dtype=torch.float32,
                ranks=ranks,
            )

        runner_limits = RunnerLimits(
            max_batch_size=setup.max_live,
            max_step_tokens=setup.chunk,
            session_len=SESSION_LEN,
            block_size=setup.block_size,
            kv_format=setup.kv_format,
            max_verified_tokens=(32 if setup.has_rounds else 10) if setup.drafts else 0,
        )
        followers: ThreadFollowers | None = None
        if setup.num_ranks > 1:
            led, followers, runners = make_led_runner(load, runner_limits, setup.num_ranks)
            self.runner: ModelRunner = led
        else:
            self.runner = ModelRunner(load(None), runner_limits)
            runners = [self.runner]
        folders = {name: str(_folder_of(path, name)) for name in ADAPTERS if setup.adapter_slots}
        options = EngineConfig(adapters=folders, max_adapters=setup.adapter_slots)
        for runner in runners:
            make_slots(runner, options)
        self.proposals: Proposals | None = None
        if setup.drafts:
            self.proposals = make_proposals(
                checkpoint, setup.method, setup.drafts, self.runner, has_rounds=setup.has_rounds
            )
        self.runner.allocate_cache(num_blocks=setup.num_blocks, share=0.5, num_host_slots=setup.num_host_slots)
        if device.type == "cuda":
            self.runner.warm_up()
            self.runner.record_graphs()
        self.graph_steps: list[int] = []
        if setup.eager_graphs and device.type == "cpu":
            with ThreadPoolExecutor(len(runners)) as threads:
                self.graph_steps = next(iter(threads.map(record_eagerly, runners)))
        pool = BlockPool(setup.num_blocks, setup.block_size, setup.caching, setup.num_host_slots)
        limits = SchedulerConfig(
            max_batch_size=setup.max_live,
            max_prefill_token_num=setup.chunk,
            session_len=SESSION_LEN,
            num_adapter_slots=self.runner.limits.num_adapter_slots,
        )
        policy: StepPolicy | None = None
        if setup.max_step_s is not None:
            times = StepTimes(self.runner.measure_step_costs())
            policy = TimedSteps(times=times, max_step_s=setup.max_step_s, least_tokens=2)
        self.scheduler = Scheduler(limits, pool, policy=policy, states=self._make_states())
        self.tower = FakeTower(device, faults)
        adapters = AdapterControl(AdapterStore(self.runner), self.scheduler)
        load_adapters(adapters, folders)
        for store in map(AdapterStore, runners[1:]):
            for folder in folders.values():
                store.add(store.read(folder))
        self.loop = EngineLoop(
            scheduler=self.scheduler,
            runner=self.runner,
            encoder=self.tower,
            vision_config=VisionConfig(max_batch_size=3, embedding_cache_bytes=setup.embedding_bytes),
            is_ahead=setup.is_ahead,
            grammars=CompiledGrammars(lambda: TOKENS, encode=spell),
            adapters=adapters,
            jumps=(JumpRule if setup.jumps else _OneByOne)(session_len=SESSION_LEN, has_graphs=setup.eager_graphs),
        )
        self.loop.steps.speculation = self.proposals
        if setup.masks_beside:
            self.loop._grammars.masks.few_rows = 0
        self._check_row_table()
        if followers is not None:
            close, end = self.loop.close, followers.end

            def close_all() -> None:
                close()
                end()

            self.loop.close = close_all  # type: ignore[method-assign]

    def _make_states(self) -> StateSlots | None:
        """Slots of states, with snapshots behind every second block."""
        runner, setup = self.runner, self.setup
        if not runner.num_states:
            return None
        return StateSlots(
            setup.num_states or runner.num_states,
            SnapshotPlaces(setup.block_size, 2 * setup.block_size),
            enable_prefix_caching=setup.caching,
            num_host_slots=runner.num_host_states,
        )

    def inject(self) -> None:
        """Let faults happen, once the loop was started."""
        inject_into(self.loop, self.faults)
        if self.setup.lends and self.setup.device == "cpu":
            worker: Any = self.loop.embeddings.worker
            lend_before_the_end(worker, self._fail_late)

    def _fail_late(self, launched: Any) -> bool:
        """A call of the tower goes on for a moment. Returns whether it fails."""
        time.sleep(random.random() * 0.003)
        try:
            self.faults.strike("encode")
        except Injected as error:
            now = time.monotonic()
            self.faults.failed_pictures += [(entry.item.features["number"], now) for entry in launched.batch]
            for entry in launched.batch:
                worker: Any = self.loop.embeddings.worker
                worker._fail(entry, RequestError(ErrorCode.INTERNAL, repr(error)))
            return True
        return False

    def _check_row_table(self) -> None:
        """Compare what the runner knows with what the scheduler does, whenever a plan was applied."""
        apply = self.runner.apply
        self.row_problems: list[BaseException] = []

        def checked_apply(plan: StepPlan) -> None:
            apply(plan)
            try:
                check_row_table(self.runner.rows, self.scheduler)
            except BaseException as error:
                self.row_problems.append(error)

        self.runner.apply = checked_apply  # type: ignore[method-assign]

    def settle(self) -> None:
        """Wait until the loop has taken all that was sent to it, and most likely made a step."""
        for _ in range(5):
            is_taken = threading.Event()
            self.loop._inbox.put(is_taken.set)
            assert is_taken.wait(TIMEOUT_S)

    def check_idle(self) -> None:
        """Everything was given back, and all invariants hold."""
        problems: list[BaseException] = []

        def check() -> None:
            try:
                self.scheduler.check_integrity()
                self.loop.embeddings.store.check_integrity()
                stats = self.scheduler.stats()
                assert (stats.num_running, stats.num_waiting, stats.num_used_kv_blocks) == (0, 0, 0), stats
                assert self.loop.embeddings.store.stats().pinned_embedding_bytes == 0
            except BaseException as error:
                problems.append(error)

        deadline = time.monotonic() + TIMEOUT_S
        while not self.loop._flight.is_empty and time.monotonic() < deadline:
            time.sleep(0.001)
        self.loop._inbox.put(check)
        self.settle()
        assert not len(self.runner.rows), "sequences are over, and the runner knows them still"
        for problem in problems + self.row_problems:
            raise problem


class World:
    """An engine, in this process or in one of its own, and those who ask it."""

    def __init__(self, backbone: Backbone, setup: Setup, faults: Faults) -> None:
        self.setup, self.faults = setup, faults
        self._arrived: queue.SimpleQueue[TokenOutput] = queue.SimpleQueue()
        self._num_asked = 0
        self._adapter_ids: dict[str | None, int] = {None: 0}
        if setup.adapter_slots:
            self._adapter_ids |= {n: AdapterFolder.load(_folder_of(backbone.path, n)).make_id() for n in ADAPTERS}
        if setup.own_process:
            from differential_engine import start_process

            self.core: EngineCore = start_process(backbone.path, setup, faults)
            self.core.start(self)
            return
        self.engine = Engine(backbone.path, setup, faults)
        self.core = self.engine.loop
        self.core.start(self)
        self.engine.inject()

    @property
    def loop(self) -> EngineLoop:
        return self.engine.loop

    @property
    def runner(self) -> ModelRunner:
        return self.engine.runner

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    def on_outputs(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            self._arrived.put(output)

    def on_encoding(self, item_hash: bytes) -> None:
        pass

    def on_features_wanted(self, request_id: int, item_index: int) -> None:
        raise AssertionError(f"features of item {item_index} of request {request_id} are wanted: it came with arrays")

    def ask(self, questions: Sequence[tuple[Question, int | None]], rng: random.Random) -> dict[int, Asked]:
        """Ask (question, when to leave) pairs, up to `max_live` at a time, until each has its final delta."""
        asked: dict[int, Asked] = {}
        live: dict[int, Asked] = {}
        left = list(reversed(questions))
        group = _Group()
        while left or live:
            while left and len(live) < self.setup.max_live:
                one = Asked(*left.pop())
                if group.question != one.question:
                    self.core.end_group(group.group_id)
                    stays = rng.random() < 0.3 and one.question.grammar is None  # as beam search, which has no grammars
                    group = _Group(one.question, self._num_asked + 1, stays)
                streams = one.leaves_after is not None or rng.random() < 0.5
                request_id = self.submit(one.question, streams=streams, group=group)
                asked[request_id] = live[request_id] = one
                if one.leaves_after == 0:
                    self._leave(request_id, one.question, rng)
            delta = self._arrived.get(timeout=TIMEOUT_S)
            one = live[delta.request_id]
            one.token_ids += delta.token_ids
            if delta.prompt_logprobs is not None:
                one.prompt_logprobs = delta.prompt_logprobs
            if delta.finish_reason is not None:
                one.final, one.ended_at = delta, time.monotonic()
                del live[delta.request_id]
            elif one.leaves_after is not None and len(one.token_ids) >= one.leaves_after:
                self.core.abort([delta.request_id])
        assert self._arrived.empty(), "output after the final delta"
        self.core.end_group(group.group_id)
        return asked

    def submit(self, question: Question, *, streams: bool = False, group: _Group | None = None) -> int:
        """Ask one question, maybe as one of several answers to it. Returns the id of its deltas."""
        self._num_asked += 1
        request_id = self._num_asked
        has_salt = self.setup.has_tenants and (request_id if group is None else group.group_id) % 7 == 0
        request = TokenRequest(
            request_id=request_id,
            prompt=question.make_prompt(),
            params=question.params,
            grammar=question.grammar,
            priority=(0, 0, 0, -1, 2)[request_id % 5] if self.setup.has_tenants else 0,
            cache_salt=b"tenant" if has_salt else b"",
            adapter_id=self._adapter_ids[question.adapter],
            is_streamed=streams,
            defers_tokens=not streams,
            group_id=None if group is None else group.group_id,
            keeps_blocks=group is not None and group.stays,
        )
        self.core.submit([request])
        return request_id

    def take_delta(self) -> TokenOutput:
        return self._arrived.get(timeout=TIMEOUT_S)

    def take_final(self, request_id: int) -> TokenOutput:
        """The final delta of the one request that is live."""
        while True:
            delta = self._arrived.get(timeout=TIMEOUT_S)
            assert delta.request_id == request_id, delta
            if delta.finish_reason is not None:
                return delta

    def _leave(self, request_id: int, question: Question, rng: random.Random) -> None:
        """Abort a request soon; or while its first picture is encoded, and come back when that is over: those who ask
        for the same picture now do so while the worker's message is on its way."""

        def wait_while(state: Lookup) -> None:
            deadline = time.monotonic() + 0.01
            while self.loop.embeddings.store.find(item.hash) is state and time.monotonic() < deadline:
                time.sleep(0.0001)

        if self.setup.own_process or not question.pictures or rng.random() < 0.5:
            time.sleep(rng.random() * 0.003)
            self.core.abort([request_id])
            return
        item = question.make_prompt().items[0]
        wait_while(Lookup.MISSING)
        self.loop.abort([request_id])
        wait_while(Lookup.IN_FLIGHT)

    def settle(self) -> None:
        """Wait until the loop has taken all that was sent to it, and most likely made a step."""
        self.engine.settle()

    def check_idle(self) -> None:
        """Everything was given back, and all invariants hold. A process is ended for that, and tells what it saw."""
        if not self.setup.own_process:
            self.engine.check_idle()
            return
        from differential_engine import read_report

        self.core.close()
        found = read_report(self.faults)
        assert not found, found

    def close(self) -> None:
        self.core.close()


def check_answers(asked: Mapping[int, Asked], alone: Mapping[Question, Asked], faults: Faults) -> None:
    """Each answer is that of the question alone; one that was left or is to blame for a fault may be cut short."""
    for request_id, one in asked.items():
        expected = alone[one.question]
        assert one.final is not None and expected.final is not None
        where = f"request {request_id}, {one.question}: {one.final.finish_reason}, {one.final.error}"
        if one.final.finish_reason == "error":
            assert faults.explains(one.final.error, request_id, one), where
        if one.final.finish_reason in ("error", "abort"):
            assert one.leaves_after is not None or one.final.finish_reason == "error", where
            assert one.token_ids == expected.token_ids[: len(one.token_ids)], where
            continue
        assert one.token_ids == expected.token_ids, where
        assert one.final.finish_reason == expected.final.finish_reason, where
        if one.prompt_logprobs is None or expected.prompt_logprobs is None:
            has_values = (
                one.question.params.prompt_logprobs is not None and len(one.question.make_prompt().token_ids) > 1
            )
            assert one.prompt_logprobs is expected.prompt_logprobs is None and not has_values, where
        else:
            ours, theirs = one.prompt_logprobs.values, expected.prompt_logprobs.values
            np.testing.assert_allclose(ours, theirs, atol=1e-3, err_msg=where)
