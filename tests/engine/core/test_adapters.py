"""Adapters that come and go: who may still name them, when they are forgotten, and what is said of the others."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from adapter_folders import write_folder

from seesay.config import EngineConfig
from seesay.engine.commands import LoadAdapter, LoadedAdapter, UnloadAdapter
from seesay.engine.core.adapters import AdapterControl, make_slots
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.token_messages import TokenRequest
from seesay.errors import CheckpointError, ConfigError, ErrorCode, RequestError
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.values import MultimodalInput


class Store:
    """Reads adapters whose id is the number that their folder is called by, and notes which it has."""

    def __init__(self) -> None:
        self.there: list[int] = []
        self.towers: dict[int, Any] = {}

    def read(self, folder: str) -> Any:
        if folder == "bad":
            raise CheckpointError("bad: is no adapter")
        return SimpleNamespace(id=int(folder), tower_key="")

    def add(self, adapter: Any) -> None:
        assert adapter.id not in self.there
        self.there.append(adapter.id)

    def drop(self, adapter_id: int) -> None:
        self.there.remove(adapter_id)


class Part:
    """A control, and what its store and its scheduler have."""

    def __init__(self) -> None:
        self.store = Store()
        self.forgotten: list[int] = []
        as_store: Any = self.store
        scheduler: Any = SimpleNamespace(forget_adapter=self.forgotten.append)
        self.control = AdapterControl(as_store, scheduler)

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


def make_request(adapter_id: int, group_id: int | None = None) -> LiveRequest:
    prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3)
    return LiveRequest.make(
        TokenRequest(request_id=1, prompt=prompt, params=SamplingParams(), adapter_id=adapter_id, group_id=group_id)
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


def test_without_adapters_there_are_no_slots_and_modules_take_none() -> None:
    limits = RunnerLimits(max_batch_size=8, max_step_tokens=8, session_len=8, block_size=8)
    runner: Any = SimpleNamespace(decoder=object(), limits=limits, adapters=None)
    make_slots(runner, EngineConfig())
    assert runner.limits is limits and runner.adapters is None
    with pytest.raises(ConfigError, match="which take no adapters"):
        make_slots(runner, EngineConfig(max_adapters=1))
