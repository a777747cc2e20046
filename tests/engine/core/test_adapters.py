"""Adapters that come and go: who may still name them, when they are forgotten, and what is said of the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from adapter_folders import write_folder

from seesay.checkpoint.adapter_folder import AdapterFolder
from seesay.config import EngineConfig
from seesay.encoders.tower_adapters import TowerAdapter
from seesay.engine.commands import LoadAdapter, LoadedAdapter, UnloadAdapter
from seesay.engine.core.adapters import AdapterControl, AdapterStore, load_adapters, make_slots
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.core.live_requests import Awaited, LiveRequests
from seesay.engine.token_messages import TokenRequest
from seesay.errors import CheckpointError, ConfigError, ErrorCode, RequestError
from seesay.llm.models.adapters.adapter_reader import HostAdapter
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.values import MultimodalInput


class Store:
    """Reads adapters whose id is the number that their folder is called by, and notes which it has."""

    def __init__(self) -> None:
        self.there: list[int] = []
        self.towers: dict[int, Any] = {}
        self.fails: dict[str, Exception] = {}

    def read(self, folder: str) -> Any:
        if folder == "bad":
            raise CheckpointError("bad: is no adapter")
        if folder in self.fails:
            raise self.fails[folder]
        return SimpleNamespace(id=int(Path(folder).name), tower_key="")

    def add(self, adapter: Any) -> None:
        assert adapter.id not in self.there
        if "add" in self.fails:
            raise self.fails["add"]
        self.there.append(adapter.id)

    def drop(self, adapter_id: int) -> None:
        """It may be in its file alone."""
        self.there = [each for each in self.there if each != adapter_id]


class Part:
    """A control, and what its store and its scheduler have."""

    def __init__(self, max_in_memory: int = 0) -> None:
        self.store = Store()
        self.forgotten: list[int] = []
        as_store: Any = self.store
        scheduler: Any = SimpleNamespace(forget_adapter=self.forgotten.append)
        self.control = AdapterControl(as_store, scheduler, max_in_memory=max_in_memory)

    def load(self, name: str, folder: str) -> None:
        command = LoadAdapter(name=name, folder=folder)
        done: Future[None] = Future()
        assert self.control.take(command, self.control.read(command), done) is None
        done.result(0)

    def unload(self, name: str, running: Any = "finish") -> tuple[Future[None], int | None]:
        """Return what tells of the end, and the adapter whose requests are to be aborted."""
        done: Future[None] = Future()
        return done, self.control.take(UnloadAdapter(name=name, running=running), None, done)

    def names(self) -> list[str]:
        return [each.name for each in self.control.loaded]


def make_request(adapter_id: int, group_id: int | None = None, request_id: int = 1) -> LiveRequest:
    prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3)
    return LiveRequest.make(
        TokenRequest(
            request_id=request_id, prompt=prompt, params=SamplingParams(), adapter_id=adapter_id, group_id=group_id
        )
    )


@pytest.fixture
def part() -> Part:
    made = Part()
    made.load("one", "1")
    made.load("two", "2")
    return made


def test_an_adapter_without_requests_is_forgotten_at_once(part: Part) -> None:
    done, aborted = part.unload("one")
    assert part.names() == ["two"] and aborted is None and not done.done()
    part.control.finish_unloading([make_request(2), make_request(0)])
    assert done.done() and part.store.there == [2] and part.forgotten == [1]


def test_one_with_requests_stays_until_they_have_ended(part: Part) -> None:
    first, second = make_request(1), make_request(1)
    done, aborted = part.unload("one", "abort")
    assert aborted == 1
    for live in ([first, second], [second]):
        part.control.finish_unloading(live)
        assert not done.done() and part.store.there == [1, 2]
    part.control.finish_unloading([])
    assert done.done() and part.store.there == [2]
    part.control.finish_unloading([])
    assert part.forgotten == [1]


def test_two_names_of_one_content_are_one_adapter(part: Part) -> None:
    part.load("again", "1")
    assert part.store.there == [1, 2] and part.names() == ["one", "two", "again"]
    done, aborted = part.unload("one", "abort")
    assert done.done() and aborted is None, "the other name has it"
    part.control.finish_unloading([])
    assert part.store.there == [1, 2]
    part.unload("again")
    part.control.finish_unloading([])
    assert part.store.there == [2]


def test_one_that_comes_back_while_it_leaves_stays(part: Part) -> None:
    live = [make_request(1)]
    done, _ = part.unload("one")
    part.control.finish_unloading(live)
    part.load("one", "1")
    part.control.finish_unloading([])
    assert done.done() and part.store.there == [1, 2] and not part.forgotten


def test_one_that_leaves_twice_is_forgotten_once(part: Part) -> None:
    """It came back while its first requests were finished, and left again before they ended."""
    live = [make_request(1)]
    first, _ = part.unload("one")
    part.control.finish_unloading(live)
    part.load("one", "1")
    second, _ = part.unload("one")
    part.control.finish_unloading(live)
    assert not first.done() and not second.done()
    part.control.finish_unloading([])
    assert first.done() and second.done()
    assert part.store.there == [2] and part.forgotten == [1]


def test_requests_of_an_adapter_that_left_are_refused_unless_others_of_their_prompt_are_finished(part: Part) -> None:
    assert part.control.find_refusal(make_request(1)) is None and part.control.find_refusal(make_request(0)) is None
    part.unload("one")
    refusal = part.control.find_refusal(make_request(1))
    assert refusal is not None and (refusal.code, refusal.param) == (ErrorCode.INVALID_REQUEST, "model")
    assert part.control.find_refusal(make_request(1, group_id=7)) is None
    part.control.finish_unloading([])
    assert part.control.find_refusal(make_request(1, group_id=7)) is not None


def test_what_cannot_be_done_is_told_to_who_asked(part: Part) -> None:
    done, aborted = part.unload("three", "abort")
    assert aborted is None
    with pytest.raises(RequestError, match="three"):
        done.result(0)
    with pytest.raises(RequestError, match="'one' is loaded already"):
        part.control.read(LoadAdapter(name="one", folder="3"))
    late: Future[None] = Future()
    part.control.take(LoadAdapter(name="one", folder="3"), part.store.read("3"), late)
    with pytest.raises(RequestError, match="'one' is loaded already"):
        late.result(0)
    assert part.store.there == [1, 2]


def test_an_engine_that_is_started_again_has_those_of_before(part: Part, caplog: pytest.LogCaptureFixture) -> None:
    """Its own are those of its configuration; one has other content now, and one cannot be read."""

    def had(name: str, folder: str) -> LoadedAdapter:
        return LoadedAdapter(name=name, id=int(folder) if folder.isdigit() else 9, folder=folder, tower_key="")

    part.control.replay([had("two", "2"), had("three", "3"), had("lost", "bad"), had("three", "4")])
    assert {each.name: each.id for each in part.control.loaded} == {"two": 2, "three": 4}
    assert part.store.there == [2, 4] and part.forgotten == [1]
    assert "an adapter that was in use cannot be read again: bad: is no adapter" in caplog.text


def test_an_engine_that_had_none_unloads_those_of_its_configuration(part: Part) -> None:
    part.control.replay([])
    assert part.names() == [] == part.store.there and sorted(part.forgotten) == [1, 2]


def test_those_that_are_loaded_are_named_where_another_is_asked_for(part: Part) -> None:
    for expected in ("'one', 'two'", "'one'", "none is"):
        done, _ = part.unload("three")
        with pytest.raises(RequestError, match=f"the adapter 'three' is not loaded: {expected}$") as caught:
            done.result(0)
        assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_REQUEST, "lora_name")
        if part.names():
            part.unload(part.names()[-1])
    part.load("b", "3")
    part.load("a", "4")
    with pytest.raises(RequestError, match="'a', 'b'"):
        part.unload("three")[0].result(0)


def test_an_adapter_of_the_tower_is_found_while_it_is_there(part: Part) -> None:
    tower: Any = object()
    part.store.towers[1] = tower
    assert part.control.find_tower(1) is tower and part.control.find_tower(2) is None
    part.control.close()
    assert part.control.find_tower(1) is None


@pytest.mark.parametrize("number", [1, 4, 5, 9])
def test_those_of_a_configuration_are_loaded_in_their_order(number: int, tmp_path: Path) -> None:
    folders = {f"name{index}": tmp_path / str(index) for index in range(1, number + 1)}
    for folder in folders.values():
        folder.mkdir()
    part = Part()
    load_adapters(part.control, {name: str(folder) for name, folder in folders.items()})
    assert part.store.there == [*range(1, number + 1)] and part.names() == [*folders]


# --- more adapters than are in memory ---------------------------------------------------------------------------------


class Waiting:
    """Requests that wait for their adapters, of which one is in memory."""

    def __init__(self) -> None:
        self.part = Part(max_in_memory=1)
        self.part.load("one", "1")
        self.part.load("two", "2")
        self.requests = LiveRequests()
        self.woken = threading.Semaphore(0)

    def hold(self, *adapter_ids: int) -> None:
        """Let requests come for adapters, whose ids they have, too."""
        for adapter_id in adapter_ids:
            self.requests.add(make_request(adapter_id, request_id=adapter_id), Awaited.ADAPTER)

    def move(self) -> list[tuple[int, str]]:
        """Return the requests that need wait no more, with their failures."""
        found = self.part.control.places.release_held(self.requests, self.woken.release)
        return [(request.request_id, str(failure or "")) for request, failure in found]

    def wait(self) -> list[tuple[int, str]]:
        """The same when an adapter was read."""
        assert self.woken.acquire(timeout=60)
        return self.move()


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    made = Waiting()
    yield made
    made.part.control.close()


def test_an_adapter_that_a_request_waits_for_takes_the_place_of_one_that_none_uses(waiting: Waiting) -> None:
    assert waiting.part.store.there == [1] and waiting.part.names() == ["one", "two"]
    assert waiting.move() == [] and waiting.part.store.there == [1], "nobody waits"
    waiting.hold(2)
    assert waiting.move() == []
    assert waiting.part.store.there == [] and waiting.part.forgotten == [1]
    assert waiting.wait() == [(2, "")]
    assert waiting.part.store.there == [2] and not waiting.requests.held[Awaited.ADAPTER]
    waiting.requests.add(make_request(2, request_id=2))
    waiting.hold(1)
    assert waiting.move() == [] and waiting.part.store.there == [2], "a request uses it"
    waiting.requests.clear()
    waiting.hold(1)
    assert waiting.move() == [] and waiting.wait() == [(1, "")]
    assert waiting.part.store.there == [1] and waiting.part.forgotten == [1, 2]


def test_one_that_was_read_is_taken_though_nobody_waits_any_more(waiting: Waiting) -> None:
    waiting.hold(2)
    assert waiting.move() == []
    waiting.requests.clear()
    assert waiting.wait() == [] and waiting.part.store.there == [2]


def test_requests_whose_adapter_cannot_be_read_again_end_with_the_reason(waiting: Waiting) -> None:
    store = waiting.part.store
    store.fails["2"] = CheckpointError("2: is gone")
    waiting.hold(2)
    waiting.requests.held[Awaited.ADAPTER][7] = make_request(2, request_id=7)
    assert waiting.move() == [] and waiting.wait() == [(2, "2: is gone"), (7, "2: is gone")]
    assert store.there == [] and not waiting.requests.held[Awaited.ADAPTER]
    store.fails.clear()
    waiting.hold(2)
    assert waiting.move() == [] and waiting.wait() == [(2, "")] and store.there == [2], "it is tried again"


def test_an_adapter_that_was_changed_meanwhile_is_another_one(waiting: Waiting) -> None:
    read = waiting.part.store.read
    waiting.part.store.read = lambda folder: read("9")  # type: ignore[method-assign]
    waiting.hold(2)
    assert waiting.move() == []
    [(request_id, failure)] = waiting.wait()
    assert request_id == 2 and failure.startswith("2: the adapter was changed since it was loaded")
    assert waiting.part.store.there == []


def test_an_adapter_that_is_in_its_file_alone_can_be_unloaded(waiting: Waiting) -> None:
    waiting.hold(2)
    assert waiting.move() == [] and waiting.wait() == [(2, "")]
    for name, left in (("one", [2]), ("two", [])):
        done, _ = waiting.part.unload(name)
        waiting.part.control.finish_unloading([])
        assert done.done() and waiting.part.store.there == left
    waiting.part.load("three", "3")
    assert waiting.part.store.there == [3], "there is room again"


def test_what_does_not_get_into_memory_takes_no_place_there() -> None:
    part = Part(max_in_memory=1)
    part.store.fails["add"] = RequestError(ErrorCode.OUT_OF_MEMORY, "not enough")
    done: Future[None] = Future()
    command = LoadAdapter(name="one", folder="1")
    part.control.take(command, part.control.read(command), done)
    with pytest.raises(RequestError, match="not enough"):
        done.result(0)
    assert part.names() == []
    part.store.fails.clear()
    part.load("one", "1")
    assert part.store.there == [1]


# --- what is read -----------------------------------------------------------------------------------------------------

PEFT = "base_model.model."
OWN, OTHER = f"{PEFT}model.layers.0.self_attn.q_proj", f"{PEFT}visual.blocks.0.attn.proj"


class Slots:
    """The adapters of a runner: knows modules of layers, and notes what it has."""

    def __init__(self) -> None:
        self.reader = self
        self.there: list[int] = []
        self.fails: BaseException | None = None

    def find_others(self, whole: AdapterFolder) -> list[str]:
        return [name for name in whole.names if "layers" not in name]

    def read(self, own: AdapterFolder) -> HostAdapter:
        nothing: Any = None
        return HostAdapter(id=own.make_id(), folder=str(sorted(own.names)), memory=nothing, ranks=nothing)

    def add(self, adapter: HostAdapter) -> None:
        if self.fails is not None:
            raise self.fails
        self.there.append(adapter.id)

    def drop(self, adapter_id: int) -> None:
        self.there.remove(adapter_id)


@pytest.fixture
def store() -> Any:
    runner: Any = SimpleNamespace(adapters=Slots())
    return AdapterStore(runner)


def write(folder: Path, *modules: str) -> str:
    write_folder(folder, {f"{module}.lora_{letter}.weight": torch.ones(4, 4) for module in modules for letter in "AB"})
    return str(folder)


def test_an_adapter_of_layers_is_read_whole(store: AdapterStore, tmp_path: Path) -> None:
    found = store.read(write(tmp_path, OWN))
    assert OWN.removeprefix(PEFT) in found.decoder.folder and found.tower is None and found.tower_key == ""
    assert found.id == found.decoder.id == AdapterFolder.load(tmp_path).make_id()


def test_what_belongs_to_no_layer_needs_a_tower(store: AdapterStore, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"blocks.0.attn.proj' belongs to no layer of the language model, and"):
        store.read(write(tmp_path, OWN, OTHER))


def test_an_engine_without_slots_says_how_to_get_some(store: Any, tmp_path: Path) -> None:
    store._runner.adapters = None
    with pytest.raises(RequestError, match=r"no slots for adapters: start it with max_adapters") as caught:
        store.read(write(tmp_path, OWN))
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_REQUEST, "lora_name")


def test_what_an_adapter_changes_in_the_tower_comes_and_goes_with_it(store: Any, tmp_path: Path) -> None:
    nothing: Any = None
    tower = TowerAdapter("key", nothing, (), nothing)
    own = store.read(write(tmp_path, OWN))
    changing = own._replace(tower=tower)
    assert changing.tower_key == "key"
    store.add(own)
    assert store.towers == {}
    store.drop(own.id)
    store.add(changing)
    assert store._runner.adapters.there == [own.id] and store.towers == {own.id: tower}
    store.drop(own.id)
    assert store._runner.adapters.there == [] and store.towers == {}


def test_an_adapter_for_which_there_is_no_memory_is_not_taken(store: Any, tmp_path: Path) -> None:
    nothing: Any = None
    adapter = store.read(write(tmp_path, OWN))._replace(tower=TowerAdapter("key", nothing, (), nothing))
    store._runner.adapters.fails = torch.OutOfMemoryError("no memory")
    with pytest.raises(RequestError, match="not enough memory for whole weights of the adapter") as caught:
        store.add(adapter)
    assert (caught.value.code, caught.value.param) == (ErrorCode.OUT_OF_MEMORY, "lora_path")
    store._runner.adapters.fails = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        store.add(adapter)
    assert store.towers == {}


def test_a_closed_engine_reads_none(part: Part) -> None:
    part.control.close()
    with pytest.raises(RequestError) as caught:
        part.control.read(LoadAdapter(name="three", folder="3"))
    assert caught.value.code is ErrorCode.CLOSED


@pytest.mark.parametrize(
    ("options", "num_slots", "max_rank"),
    [
        ({}, 2, 32),  # the largest of them
        ({"max_adapters": 5, "max_adapter_rank": 48}, 5, 48),
        ({"max_cpu_adapters": 1}, 1, 32),
        ({"max_adapters": 20, "max_batch_size": 4}, 4, 32),
        ({"adapters": {}, "max_adapters": 3}, 3, 16),
    ],
)
def test_slots_are_for_the_adapters_of_the_configuration(
    options: dict[str, Any], num_slots: int, max_rank: int, tmp_path: Path
) -> None:
    weights = {"base_model.model.model.layers.0.self_attn.q_proj": (64, 64)}
    for name, rank in (("a", 8), ("b", 20)):
        tensors = {
            f"{module}.lora_{letter}.weight": torch.zeros(rank, columns) if letter == "A" else torch.zeros(rows, rank)
            for module, (rows, columns) in weights.items()
            for letter in "AB"
        }
        write_folder(tmp_path / name, tensors, rank=rank)
    adapters = {name: str(tmp_path / name) for name in "ab"}
    made: list[dict[str, int]] = []

    class Decoder(ComposedDecoder):
        def __init__(self) -> None:
            pass

        def make_adapters(self, **sizes: int) -> Any:
            made.append(sizes)
            return SimpleNamespace(experts=None)

    limits = RunnerLimits(
        max_batch_size=options.get("max_batch_size", 8), max_step_tokens=8, session_len=8, block_size=8
    )
    runner: Any = SimpleNamespace(decoder=Decoder(), limits=limits, adapters=None)
    make_slots(runner, EngineConfig(**{"adapters": adapters, **options}))
    assert runner.limits.num_adapter_slots == num_slots == made[0]["num_slots"]
    assert -(-made[0]["max_rank"] // 16) * 16 == max_rank


@pytest.mark.parametrize(("number", "is_allocated"), [(0, False), (1, True)])
def test_slots_of_experts_are_allocated_at_the_start_where_an_adapter_has_some(
    number: int, is_allocated: bool, tmp_path: Path
) -> None:
    """Before the KV cache takes the memory that is left."""
    modules = [f"{PEFT}model.layers.0.self_attn.q_proj", f"{PEFT}model.layers.0.mlp.experts.3.up_proj"]
    adapters = {"plain": write(tmp_path / "plain", modules[0]), "other": write(tmp_path / "other", modules[number])}
    allocated: list[bool] = []

    class Decoder(ComposedDecoder):
        def __init__(self) -> None:
            pass

        def make_adapters(self, **sizes: int) -> Any:
            return SimpleNamespace(experts=SimpleNamespace(allocate=lambda: allocated.append(True)))

    limits = RunnerLimits(max_batch_size=8, max_step_tokens=8, session_len=8, block_size=8)
    runner: Any = SimpleNamespace(decoder=Decoder(), limits=limits, adapters=None)
    make_slots(runner, EngineConfig(adapters=adapters))
    assert bool(allocated) == is_allocated


def test_without_adapters_there_are_no_slots_and_modules_take_none() -> None:
    limits = RunnerLimits(max_batch_size=8, max_step_tokens=8, session_len=8, block_size=8)
    runner: Any = SimpleNamespace(decoder=object(), limits=limits, adapters=None)
    make_slots(runner, EngineConfig())
    assert runner.limits is limits and runner.adapters is None
    with pytest.raises(ConfigError, match="which take no adapters"):
        make_slots(runner, EngineConfig(max_adapters=1))
