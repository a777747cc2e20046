"""An engine that sleeps: its memory is freed, and it wakes up with the same answers, also after its death."""

from __future__ import annotations

import json
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import loop_of
from other_weights import read_weights, write_weights
from updating import NAME, answers, check_refused, epoch_of, fresh, is_sleeping, kill, load, make_pairs, pid_of

from seesay import GenerationConfig, pipeline
from seesay.config import EngineConfig
from seesay.engine.commands import ModelStatus
from seesay.engine.process.remote_core import ProcessCore
from seesay.errors import CheckpointError, ConfigError, RequestError
from seesay.offline.pipeline import Pipeline


@pytest.fixture(scope="module")
def two(
    tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[Path]]:
    """A tiny checkpoint, and one of the same model with other weights, by name."""
    return make_pairs(tiny_checkpoint, tmp_path_factory.mktemp("other"))


# --- sleep ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [NAME, "llama"])
def test_sleep_and_wake_up(name: str, two: Callable[[str], list[Path]]) -> None:
    first, second = two(name)
    with load(first, num_gpu_blocks=60, num_cpu_blocks=20) as pipe:
        expected = answers(pipe, name)
        for level in (1, 2, 1):
            pipe.sleep(level)
            pipe.sleep(1)  # it sleeps already
            check_refused(pipe)
            pipe.wake_up(["kv_cache"])
            assert is_sleeping(pipe)
            check_refused(pipe)
            pipe.wake_up("weights")
            assert not is_sleeping(pipe)
            pipe.wake_up()
            stats = pipe.engine.stats()
            assert stats.num_cached_kv_blocks == 0 and stats.num_embeddings == 0
            assert answers(pipe, name) == expected
        with pytest.raises(ConfigError, match="tags must be of weights, kv_cache, got 'graphs'"):
            pipe.wake_up(["graphs"])
        pipe.sleep(1)
        for part in ("kv_cache", "weights"):  # what sleeps is told in one order, whichever slept first
            assert "its memory is freed (weights and kv_cache)" in str(pipe("hello").error)
            pipe.wake_up([part])
            pipe.sleep(1)
        pipe.sleep(2)
        pipe.wake_up(["weights"])
        pipe.sleep(1)  # from the level of the weights, which are awake
        pipe.wake_up()
        assert answers(pipe, name) == expected
        for level in (1, 2):
            pipe.sleep(level)
            pipe.update_weights(read_weights(second))
            assert is_sleeping(pipe)  # the KV cache
            pipe.wake_up(["kv_cache"])
            assert answers(pipe, name) == fresh(second, name)
        pipe.sleep(1)
        with pytest.raises(CheckpointError, match="missing"):
            pipe.update_weights({"model.norm.weight": torch.ones(64)})
        assert "its memory is freed (weights and kv_cache)" in str(pipe("hello").error), "a refused update woke it up"
        pipe.sleep(2)
        with pytest.raises(CheckpointError, match="given as tensors and dropped"):
            pipe.wake_up()
        with pytest.raises(CheckpointError, match="give all, not some"):
            pipe.update_weights(read_weights(first), partial=True)
        check_refused(pipe)
        pipe.update_weights(first)
        pipe.wake_up()
        assert answers(pipe, name) == expected


def test_dropped_memory_is_freed(two: Callable[[str], list[Path]]) -> None:
    first, _ = two(NAME)
    with load(first) as pipe:
        answers(pipe)
        loop = loop_of(pipe.engine)
        assert loop.control is not None
        cache = weakref.ref(loop._runner._cache)
        layers = loop.control._weights._layers
        weights = [weakref.ref(tensor) for each in layers for tensor in each.tensors()]
        store = [weakref.ref(tensor) for tensor in loop.embeddings.store._entries.values()]
        assert len(weights) > 20 and store
        pipe.sleep(1)
        assert cache() is None and not any(ref() is not None for ref in store)
        assert all(ref() is not None for ref in weights), "on the CPU they are where they should be"
        pipe.sleep(2)
        assert not any(ref() is not None for ref in weights)
        pipe.wake_up()
        answers(pipe)


@pytest.mark.slow
def test_the_process_gives_its_memory_back() -> None:
    """The resident memory of an engine process with the built-in model, whose weights take 30 MB in float32."""
    with pipeline(backend_config=EngineConfig(device_type="cpu", engine_process=True)) as pipe:
        core = pipe.engine.core
        assert isinstance(core, ProcessCore)
        config = GenerationConfig(max_new_tokens=4, ignore_eos=True)
        prompts = [f"{number} describe the picture and what is in it, " * 60 for number in range(8)]
        before = pipe(prompts, config)
        assert not any(response.error for response in before)
        full = resident_bytes(core.pid)
        pipe.sleep(1)
        without_cache = resident_bytes(core.pid)
        pipe.sleep(2)
        without_weights = resident_bytes(core.pid)
        assert full - without_cache > 20e6 and without_cache - without_weights > 20e6
        pipe.wake_up()
        assert [response.token_ids for response in pipe(prompts, config)] == [r.token_ids for r in before]


def resident_bytes(pid: int | None) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) << 10


# --- deaths -----------------------------------------------------------------------------------------------------------


def test_a_process_that_is_started_again_has_the_weights_of_the_folder(
    two: Callable[[str], list[Path]], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    first, second = two("llama")
    expected = [fresh(path, "llama") for path in (first, second)]
    part = {n: t for n, t in read_weights(first).items() if "layers.0." in n}
    with load(first, own=True) as pipe:
        pipe.update_weights(second)
        kill(pipe)
        assert answers(pipe, "llama") == expected[1] and epoch_of(pipe) == 1
        assert not has_lost(pipe)
        pipe.update_weights(part, partial=True)
        assert answers(pipe, "llama") not in expected
        kill(pipe)
        assert answers(pipe, "llama") == expected[1], "those of the folder"
        assert epoch_of(pipe) == 3 and has_lost(pipe)
        assert "updates of the weights are lost" in caplog.text
        gone = write_weights(first, tmp_path / "gone", read_weights(first))
        pipe.update_weights(gone)
        assert not has_lost(pipe)
        (gone / "model.safetensors").unlink()
        kill(pipe)
        assert answers(pipe, "llama") == expected[0] and has_lost(pipe)


@pytest.mark.slow
def test_a_process_falls_back_from_a_folder_that_was_quantized_meanwhile(
    two: Callable[[str], list[Path]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = two("llama")
    changed = write_weights(second, tmp_path / "changed", read_weights(second))
    with load(first, own=True, quantization="fp8") as pipe:
        expected = answers(pipe, "llama")
        pipe.update_weights(changed)
        assert answers(pipe, "llama") != expected
        config = json.loads((changed / "config.json").read_text())
        (changed / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
        kill(pipe)
        assert answers(pipe, "llama") == expected and has_lost(pipe)
    assert "the engine process died (signal 9); the engine is started again" in caplog.text
    assert f"{changed} is quantized already (fp8)" in caplog.text


def test_a_replay_that_fails_in_the_middle_leaves_no_mixture(two: Callable[[str], list[Path]]) -> None:
    """The folder changes between the check and the replacement."""
    first, second = two("llama")
    with load(first) as pipe:
        expected = answers(pipe, "llama")
        control = loop_of(pipe.engine).control
        assert control is not None
        replace_all = control._weights.replace

        def fail_behind(source: Any, *, is_partial: bool) -> None:
            replace_all(source, is_partial=is_partial)
            if str(source.path) == str(second):
                raise CheckpointError("it has changed")

        control._weights.replace = fail_behind  # type: ignore[method-assign]
        control.replay(ModelStatus(epoch=1, folders=(str(second),)))
        pipe.engine.reset_caches()
        assert answers(pipe, "llama") == expected and control.status.has_lost


def test_a_process_that_dies_asleep_is_started_when_it_is_woken_up(two: Callable[[str], list[Path]]) -> None:
    first, second = two("llama")
    expected = fresh(second, "llama")
    with load(first, own=True) as pipe:
        pipe.update_weights(second)
        pipe.sleep(2)
        kill(pipe)
        core = pipe.engine.core
        assert isinstance(core, ProcessCore)
        time.sleep(1)
        assert pid_of(pipe) is None, "it would take the memory that was given to others"
        check_refused(pipe)
        with pytest.raises(RequestError, match="died while it slept, wake_up"):
            pipe.update_weights(first)
        pipe.wake_up(["kv_cache"])
        assert is_sleeping(pipe) and pid_of(pipe) is None
        pipe.wake_up()
        assert pid_of(pipe) is not None and not is_sleeping(pipe)
        assert answers(pipe, "llama") == expected
        pipe.sleep(1)
        kill(pipe)
        pipe.wake_up()
        assert answers(pipe, "llama") == expected


def test_an_engine_is_woken_up_whose_death_is_not_known_yet(
    two: Callable[[str], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when the command is on the way."""
    first, _ = two("llama")
    with load(first, own=True) as pipe:
        expected = answers(pipe, "llama")
        pipe.sleep(2)
        core = pipe.engine.core
        assert isinstance(core, ProcessCore) and core.pid is not None
        ask, alive = core._commands._ask, [core.pid]

        def ask_dying(*arguments: Any) -> Any:
            while alive:
                os.kill(alive.pop(), signal.SIGKILL)
            return ask(*arguments)

        monkeypatch.setattr(core._commands, "_ask", ask_dying)
        pipe.wake_up()
        assert not alive and not is_sleeping(pipe)
        assert answers(pipe, "llama") == expected


def test_a_process_that_dies_in_an_update_keeps_the_old_weights(two: Callable[[str], list[Path]]) -> None:
    first, _ = two("llama")
    expected = fresh(first, "llama")
    with load(first, own=True) as pipe:
        weights = list(read_weights(first).items())

        def dies() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in weights[:5]:
                yield name, tensor * 2
            kill(pipe)
            yield weights[5]

        with pytest.raises((RequestError, CheckpointError)):
            pipe.update_weights(dies())
        assert answers(pipe, "llama") == expected and epoch_of(pipe) == 0


def has_lost(pipe: Pipeline) -> bool:
    return pipe.engine.status.has_lost


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("own", [False, True])
def test_gpu_memory_goes_back_to_the_device(own: bool, two: Callable[[str], list[Path]]) -> None:
    """In float32: a graph of the tower, recorded when a shape comes for the third time, rounds otherwise."""
    first, second = two(NAME)
    expected = [fresh_on_gpu(path) for path in (first, second)]
    config = EngineConfig(block_size=16, engine_process=own, num_gpu_blocks=200_000, dtype="float32")
    with Pipeline(first, config) as pipe:
        assert answers(pipe) == expected[0]
        pipe.update_weights(second)  # at the same addresses: the graphs are those from before
        assert answers(pipe) == expected[1]
        awake = torch.cuda.mem_get_info()[0]
        for level in (1, 2):
            pipe.sleep(level)
            freed = torch.cuda.mem_get_info()[0] - awake
            assert freed > 200_000 * 16 * 2 * 2 * 2, freed  # far less than a block takes
            pipe.wake_up()
            assert answers(pipe) == expected[1]
        pipe.sleep(2)
        pipe.update_weights(read_weights(first))
        pipe.wake_up(["kv_cache"])
        assert answers(pipe) == expected[0]


def fresh_on_gpu(path: Path) -> list[list[int]]:
    with Pipeline(path, EngineConfig(block_size=16, engine_process=False, num_gpu_blocks=400, dtype="float32")) as pipe:
        return answers(pipe)


@pytest.mark.gpu
def test_graphs_stay_valid_after_an_update(two: Callable[[str], list[Path]]) -> None:
    first, second = two("llama")
    with Pipeline(first, EngineConfig(block_size=16, engine_process=False, dtype="bfloat16")) as pipe:
        answers(pipe, "llama")
        loop = loop_of(pipe.engine)
        graphs = loop._runner._graphs
        assert graphs is not None
        pipe.update_weights(second)
        assert loop._runner._graphs is graphs
        assert answers(pipe, "llama") == answers_on_gpu(second)


def answers_on_gpu(path: Path) -> list[list[int]]:
    with Pipeline(path, EngineConfig(block_size=16, engine_process=False, dtype="bfloat16")) as pipe:
        return answers(pipe, "llama")
