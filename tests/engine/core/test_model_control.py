"""Weights that are replaced, sleep and wake up: in which order, and what is known of them after each.

The weights, the runner and the caches note what is asked of them. tests/engine/test_weights.py and test_sleep.py have
whole engines.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from noted_device import noted_device

from seesay.engine.commands import PARTS, ModelStatus, Sleep, StageTensor, UpdateWeights, WakeUp
from seesay.engine.core.model_control import ModelControl
from seesay.errors import CheckpointError, ErrorCode, RequestError


class Parts:
    """Notes calls by name. Those of `fails` raise; folders called 'bad' do not fit."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, BaseException] = {}
        self.folder = "first"
        self.device = torch.device("cpu")
        self.places = [1, 2]
        self.moves_on_replace = False
        self.store = SimpleNamespace(clear=lambda: self.note("clear embeddings"))
        self.called_before_drain: list[str] | None = None

    def note(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails.pop(name)

    def open_folder(self, folder: str) -> str:
        if folder == "gone":
            raise CheckpointError("gone: there is no such folder")
        return folder

    def check(self, source: str, *, is_partial: bool) -> None:
        self.note(f"check {source}{' partly' * is_partial}")
        if source == "bad":
            raise CheckpointError("bad: other sizes")

    def replace(self, source: str, *, is_partial: bool) -> None:
        self.note(f"replace {source}{' partly' * is_partial}")
        if self.moves_on_replace:
            self.places = [3, 4]

    def addresses(self) -> list[int]:
        return list(self.places)

    def drain(self) -> None:
        """Wait for the tower."""
        self.called_before_drain = [*self.calls]

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.note(name.replace("_", " "))

    def take(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def parts() -> Any:
    return Parts()


@pytest.fixture
def control(parts: Any) -> ModelControl:
    made = ModelControl(
        weights=parts,
        runner=parts,
        scheduler=parts,
        embeddings=parts,
        forget_answers=lambda: parts.note("forget answers"),
    )
    given = {"given": "tensors"}
    made.staged = SimpleNamespace(take=given.pop, drop=given.clear)  # type: ignore[assignment]
    return made


def empties_caches(calls: list[str]) -> bool:
    return {"clear embeddings", "forget prefixes", "forget answers"} <= set(calls)


def test_an_update_replaces_weights_and_empties_what_was_computed_with_them(control: ModelControl, parts: Any) -> None:
    control.run(UpdateWeights(folder="second"))
    calls = parts.take()
    assert calls[:2] == ["check second", "replace second"] and empties_caches(calls)
    assert calls[-1] == "restore graphs" and "drop cache" not in calls
    assert control.status == ModelStatus(epoch=1, folders=("second",))
    control.run(UpdateWeights(folder="third", is_partial=True))
    assert parts.take()[:2] == ["check third partly", "replace third partly"]
    assert control.status == ModelStatus(epoch=2, folders=("second", "third"))
    control.run(UpdateWeights(update_id="given"))
    assert parts.take()[:2] == ["check tensors", "replace tensors"] and control.status.has_given


def test_graphs_with_old_addresses_are_dropped_with_their_cache(control: ModelControl, parts: Any) -> None:
    parts.moves_on_replace = True
    control.run(UpdateWeights(folder="second"))
    calls = parts.take()
    assert calls[:4] == ["check second", "replace second", "drop cache", "restore cache"]


def test_weights_that_do_not_fit_change_nothing(control: ModelControl, parts: Any) -> None:
    for folder in ("bad", "gone"):
        with pytest.raises(CheckpointError, match=folder):
            control.run(UpdateWeights(folder=folder))
    assert parts.take() == ["check bad"] and control.status == ModelStatus(folders=("first",))


def test_an_update_that_fails_in_the_middle_puts_the_engine_to_sleep(
    control: ModelControl, parts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    parts.fails["replace second"] = ValueError("a bad moment")
    with pytest.raises(ValueError, match="a bad moment"):
        control.run(UpdateWeights(folder="second"))
    assert control.status.asleep == PARTS and control.status.level == 2 and control.status.epoch == 0
    assert {"drop", "drop cache"} <= set(parts.take()) and "wake_up() reads the weights again" in caplog.text
    refusal = control.find_refusal()
    assert refusal is not None and refusal.code is ErrorCode.SLEEPING
    control.run(WakeUp())
    assert parts.take() == ["replace first", "restore cache", "restore graphs"]
    assert control.find_refusal() is None


def test_sleep_of_level_one_moves_the_weights_and_wakes_up_with_them(control: ModelControl, parts: Any) -> None:
    control.run(Sleep(level=1))
    calls = parts.take()
    assert empties_caches(calls) and {"drop cache", "offload"} <= set(calls) and "drop" not in calls
    assert (control.status.asleep, control.status.level) == (PARTS, 1)
    control.run(Sleep(level=1))
    assert parts.take() == [], "it sleeps already"
    control.run(WakeUp())
    assert parts.take() == ["restore", "restore cache", "restore graphs"]
    assert control.status == ModelStatus(folders=("first",))


def test_a_deeper_sleep_drops_what_was_moved(control: ModelControl, parts: Any) -> None:
    control.run(Sleep(level=1))
    parts.take()
    control.run(Sleep(level=2))
    calls = parts.take()
    assert "drop" in calls and "drop cache" not in calls and "offload" not in calls
    assert control.status.level == 2
    control.run(Sleep(level=1))
    assert parts.take() == [] and control.status.level == 2


def test_parts_wake_up_one_by_one(control: ModelControl, parts: Any) -> None:
    control.run(Sleep(level=1))
    parts.take()
    control.run(WakeUp(tags=("weights",)))
    assert parts.take() == ["restore"] and control.status.asleep == ("kv_cache",)
    assert control.find_refusal() is not None
    control.run(WakeUp(tags=("weights",)))
    assert parts.take() == []
    control.run(Sleep(level=1))
    assert "drop cache" not in (calls := parts.take()) and "offload" in calls
    control.run(WakeUp(tags=("kv_cache",)))
    assert parts.take() == ["restore cache"] and control.status.asleep == ("weights",)
    control.run(WakeUp())
    assert parts.take() == ["restore", "restore graphs"]


def test_what_is_awake_alone_goes_to_sleep_again(control: ModelControl, parts: Any) -> None:
    control.run(Sleep(level=1))
    control.run(WakeUp(tags=("kv_cache",)))
    parts.take()
    control.run(Sleep(level=1))
    calls = parts.take()
    assert "drop cache" in calls and "offload" not in calls and control.status.asleep == PARTS


def test_nothing_that_is_awake_wakes_up_again(control: ModelControl, parts: Any) -> None:
    control.run(WakeUp(tags=()))
    assert parts.take() == []


def test_dropped_weights_are_read_from_all_their_folders(control: ModelControl, parts: Any) -> None:
    control.run(UpdateWeights(folder="second"))
    control.run(UpdateWeights(folder="third", is_partial=True))
    control.run(Sleep(level=2))
    parts.take()
    control.run(WakeUp())
    assert parts.take() == ["replace second", "replace third partly", "restore cache", "restore graphs"]


def test_weights_on_the_host_are_replaced_on_the_device_and_awake(control: ModelControl, parts: Any) -> None:
    control.run(Sleep(level=1))
    parts.take()
    parts.moves_on_replace = True
    control.run(UpdateWeights(folder="second"))
    calls = parts.take()
    assert calls[:3] == ["restore", "check second", "replace second"]
    assert "drop cache" not in calls and "restore graphs" not in calls, "the cache sleeps"
    assert control.status == ModelStatus(epoch=1, asleep=("kv_cache",), folders=("second",))


def test_those_on_the_host_go_back_where_the_new_ones_do_not_fit(control: ModelControl, parts: Any) -> None:
    control.run(Sleep(level=1))
    before = control.status
    parts.take()
    with pytest.raises(CheckpointError, match="bad"):
        control.run(UpdateWeights(folder="bad"))
    assert parts.take() == ["restore", "check bad", "offload"] and control.status == before


def test_dropped_weights_are_given_as_a_whole(control: ModelControl, parts: Any) -> None:
    control.run(Sleep(level=2))
    parts.take()
    with pytest.raises(CheckpointError, match="give all, not some"):
        control.run(UpdateWeights(folder="second", is_partial=True))
    assert parts.take() == []
    control.run(UpdateWeights(folder="second"))
    assert parts.take()[:2] == ["check second", "replace second"]
    assert control.status == ModelStatus(epoch=1, asleep=("kv_cache",), folders=("second",))


def test_given_tensors_that_were_dropped_cannot_be_read_again(control: ModelControl) -> None:
    control.run(UpdateWeights(update_id="given"))
    control.run(Sleep(level=2))
    with pytest.raises(CheckpointError, match="give them again"):
        control.run(WakeUp())
    control.run(WakeUp(tags=("kv_cache",)))
    assert control.status.asleep == ("weights",)


def test_too_little_memory_is_said_with_what_to_do(control: ModelControl, parts: Any) -> None:
    parts.fails["replace second"] = torch.OutOfMemoryError("no memory")
    with pytest.raises(RequestError, match=r"not enough memory \(.*sleep\(level=2\) first") as caught:
        control.run(UpdateWeights(folder="second"))
    assert caught.value.code is ErrorCode.OUT_OF_MEMORY and "update_weights" in str(caught.value)


def test_the_tower_computes_nothing_while_weights_change(control: ModelControl, parts: Any) -> None:
    for command in (UpdateWeights(folder="second"), Sleep(level=1), WakeUp()):
        control.run(command)
        assert parts.called_before_drain == [] and parts.take()
        parts.called_before_drain = None


def test_a_device_is_waited_for_and_gets_its_memory_back(control: ModelControl, parts: Any, tmp_path: Path) -> None:
    with noted_device(tmp_path) as (device, calls):
        parts.device = device
        parts.calls = calls  # in one order
        control.run(Sleep(level=1))
        assert calls[0] == calls[-1] == "synchronize"
        assert calls[-2] == "release cached memory" and calls.index("offload") < len(calls) - 2
        calls.clear()
        with pytest.raises(CheckpointError, match="bad"):
            control.run(UpdateWeights(folder="bad"))
        assert calls == ["synchronize", "restore", "check bad", "offload", "release cached memory"]
        calls.clear()
        parts.fails["restore"] = torch.OutOfMemoryError("no memory")
        with pytest.raises(RequestError, match="wake_up: not enough memory"):
            control.run(WakeUp())
        assert calls == ["synchronize", "restore", "release cached memory"]
        calls.clear()
        parts.fails["restore"] = ValueError("a bad moment")
        with pytest.raises(ValueError, match="a bad moment"):
            control.run(WakeUp())
        assert calls == ["synchronize", "restore"]


def test_what_was_done_is_said(control: ModelControl, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="seesay"):
        for command in (UpdateWeights(folder="second"), Sleep(level=1), WakeUp(tags=("weights",))):
            control.run(command)
    assert [re.sub(r"\d+\.\d+ s", "", each) for each in caplog.messages] == [
        "update_weights: ; weights of epoch 1, asleep: nothing",
        "sleep: ; weights of epoch 1, asleep: weights, kv_cache",
        "wake_up: ; weights of epoch 1, asleep: kv_cache",
    ]


def test_tensors_are_staged_for_the_weights(parts: Any) -> None:
    control = ModelControl(weights=parts, runner=parts, scheduler=parts, embeddings=parts, forget_answers=lambda: None)
    tensor: Any = SimpleNamespace(name="one")
    control.staged.stage(StageTensor(update_id="first", tensor=tensor))
    assert parts.take() == ["check given"]
    control.run(Sleep(level=1))
    with pytest.raises(CheckpointError, match="no tensors were given"):
        control.run(UpdateWeights(update_id="first"))


# --- an engine that is started again ----------------------------------------------------------------------------------


def test_the_weights_of_before_are_loaded_again(control: ModelControl, parts: Any) -> None:
    control.replay(ModelStatus(epoch=3, folders=("second", "third"), asleep=PARTS, level=1))
    assert [call for call in parts.take() if "graphs" not in call] == [
        "check second", "replace second", "check third partly", "replace third partly",
    ]  # fmt: skip
    assert control.status == ModelStatus(epoch=3, folders=("second", "third"))


def test_graphs_are_recorded_with_the_weights_of_before(control: ModelControl, parts: Any) -> None:
    """And what was lost once stays lost."""
    control.replay(ModelStatus(epoch=3, folders=("second",), has_lost=True))
    assert parts.take() == ["check second", "replace second", "restore graphs"]
    assert control.status == ModelStatus(epoch=3, folders=("second",), has_lost=True)


def test_those_of_the_checkpoint_are_there_already(control: ModelControl, parts: Any) -> None:
    control.replay(ModelStatus(epoch=1, folders=("first", "second")))
    assert [call for call in parts.take() if "graphs" not in call] == ["check second partly", "replace second partly"]
    assert control.status == ModelStatus(epoch=1, folders=("first", "second"))


@pytest.mark.parametrize("lost", ["bad", "gone"])
def test_what_cannot_be_read_again_is_lost_and_said(
    control: ModelControl, parts: Any, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="seesay"):
        control.replay(ModelStatus(epoch=4, folders=("second", lost, "third")))
    assert control.status == ModelStatus(epoch=5, folders=("second",), has_lost=True)
    assert "replace third partly" not in parts.take()
    assert f"cannot be read again: {lost}" in caplog.text and "they are those of second" in caplog.text


def test_a_folder_that_changes_after_its_check_leaves_those_before(control: ModelControl, parts: Any) -> None:
    parts.fails["replace third partly"] = CheckpointError("third: changed")
    control.replay(ModelStatus(epoch=4, folders=("second", "third")))
    assert [call for call in parts.take() if "graphs" not in call][-1] == "replace second"
    assert control.status == ModelStatus(epoch=5, folders=("second",), has_lost=True)


def test_given_tensors_are_lost(control: ModelControl) -> None:
    control.replay(ModelStatus(epoch=2, folders=("first",), has_given=True))
    assert control.status == ModelStatus(epoch=3, folders=("first",), has_lost=True)
