"""How a core is loaded: what 'auto' and None become, and what a rehearsal of a start does."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from seesay.config import EngineConfig, VisionConfig
from seesay.device.ranks import Place, Stages, Unconnected
from seesay.engine.core.adapters import AdapterStore
from seesay.engine.core.loading.loading import _build_parts, _is_ahead, _rehearse_ranks, load_core
from seesay.engine.core.loading.resolved_config import resolve
from seesay.engine.core.loop import EngineLoop
from seesay.engine.core.model_weights import ModelWeights
from seesay.engine.core.rank_parts import RankParts
from seesay.engine.opened_model import open_model
from seesay.engine.watchdog import CPU_LIMIT_S
from seesay.errors import ConfigError
from seesay.llm.plans.step_times import StepCosts
from seesay.llm.running.runner import ModelRunner
from seesay.llm.scheduling.step_policy import TimedSteps

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("options", "device", "is_ahead"),
    [
        ({}, CPU, False), ({}, GPU, True), ({"pp": 2}, CPU, True), ({"tp": 2}, CPU, False),
        ({"async_scheduling": False}, GPU, False), ({"async_scheduling": True}, CPU, True),
        ({"async_scheduling": False, "pp": 2}, CPU, False),
    ],
)  # fmt: skip
def test_steps_are_launched_ahead_on_gpus_and_by_stages(
    options: dict[str, Any], device: torch.device, is_ahead: bool
) -> None:
    assert _is_ahead(EngineConfig(**options), device) == is_ahead


def test_a_rehearsal_of_ranks_is_of_the_first_of_them() -> None:
    assert _rehearse_ranks(EngineConfig()) is None
    kinds: list[tuple[EngineConfig, type]] = [(EngineConfig(tp=2), Unconnected), (EngineConfig(pp=2), Stages)]
    for config, kind in kinds:
        found = _rehearse_ranks(config)
        assert found is not None and isinstance(found.ranks, kind)
        assert getattr(found.ranks, "place", None) == Place(0, config.num_ranks)


# --- how a device is made ready ---------------------------------------------------------------------------------------


class _Noted(ModelRunner):
    """Notes how it is made ready, and computes nothing."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.noted: list[Any] = []

    def profile(self, *, records_graphs: bool = False) -> int:
        self.noted.append(("profile", records_graphs))
        return 1000

    def allocate_cache(self, **sizes: Any) -> int:
        self.noted.append(sizes)
        return 0

    def warm_up(self) -> None:
        self.noted.append("warm up")

    def record_graphs(self) -> None:
        self.noted.append("record graphs")

    def measure_step_costs(self) -> StepCosts:
        self.noted.append("measure step costs")
        return StepCosts.guess(1.0)


def prepare(path: Path, device: str, *, has_ranks: bool = False, **options: Any) -> list[Any]:
    """Return what is done with a runner on a device before it computes. has_ranks: it is the first of two."""
    config = EngineConfig(
        **{"dtype": "float32", "block_size": 16, "num_gpu_blocks": 3, "speculative": {"method": "none"}, **options}
    )
    model = open_model(path, config)
    there = torch.device(device)
    waits: list[int] = []
    made: list[_Noted] = []

    def make_runner(*given: Any) -> ModelRunner:
        made.append(_Noted(*given))
        return made[-1]

    loaded: list[int] = []
    ranks = RankParts(
        ranks=Unconnected(Place(0, 2)),
        make_runner=make_runner,
        make_weights=ModelWeights,
        make_adapter_store=AdapterStore,
        wait_until_loaded=lambda: loaded.append(len(made)),
    )
    parts = _build_parts(
        model,
        config,
        resolve(config, model.checkpoint, model.backbone, there),
        lambda: waits.append(len(made)),
        make_runner,
        encoder_device=there,
        ranks=ranks if has_ranks else None,
    )
    assert loaded == [1] * has_ranks, "the slices of the other ranks are waited for when this one is there"
    [runner] = made
    assert parts.encoder is parts.tower is None
    assert waits == ([1] if device != "cpu" else []), "kernels are waited for when the weights are there"
    assert (parts.step_costs is not None) == ("measure step costs" in runner.noted)
    return list(runner.noted)


CACHE = {"num_blocks": 3, "share": 0.5, "reserved_bytes": 1000, "num_host_slots": 4}


@pytest.mark.parametrize(
    ("device", "options", "expected"),
    [
        ("cpu", {}, [("profile", False), CACHE]),
        ("cpu", {"max_step_ms": 40}, [("profile", False), CACHE, "measure step costs"]),
        ("meta", {}, [("profile", True), CACHE, "warm up", "record graphs", "measure step costs"]),
        ("meta", {"max_step_ms": None}, [("profile", True), CACHE, "warm up", "record graphs"]),
        ("meta", {"eager_mode": True, "max_step_ms": None}, [("profile", False), CACHE, "warm up"]),
    ],
)
def test_a_device_is_made_ready_behind_the_trial_of_its_memory(
    device: str, options: dict[str, Any], expected: list[Any], tiny_checkpoint: Callable[[str], Path]
) -> None:
    options = {"cache_max_entry_count": 0.5, "num_cpu_blocks": 4, **options}
    assert prepare(tiny_checkpoint("llama"), device, **options) == expected


def test_the_deterministic_mode_is_refused_before_anything_is_tried(tiny_checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="deterministic: not with experts on a GPU"):
        prepare(tiny_checkpoint("qwen3_moe"), "meta", deterministic=True, speculative=None)


def test_the_first_of_several_ranks_loads_its_slice_while_the_others_load_theirs(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    done = prepare(tiny_checkpoint("llama"), "meta", has_ranks=True, tp=2, max_step_ms=None)
    assert [each for each in done if isinstance(each, str)] == ["warm up", "record graphs"]


# --- what a core is made of -------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"device_type": "cpu", "block_size": 16, "num_gpu_blocks": 12, "session_len": 100}


class _Listener:
    """Hears nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def load(tiny_checkpoint: Callable[[str], Path]) -> Iterator[Callable[..., EngineLoop]]:
    """`load(name, options of the engine)`: a core that was not started."""
    loaded: list[EngineLoop] = []

    def load(name: str = "llama", *, core: dict[str, Any] | None = None, **options: Any) -> EngineLoop:
        config = EngineConfig(**{**OPTIONS, **options})
        model = open_model(tiny_checkpoint(name), config)
        loaded.append(load_core(model, config, VisionConfig(max_batch_size=3), **(core or {})))
        return loaded[-1]

    yield load
    listener: Any = _Listener()
    for loop in loaded:
        loop.start(listener)
        loop.close()


def test_a_core_is_what_its_options_say(load: Callable[..., Any]) -> None:
    loop = load(num_cpu_blocks=5, enable_prefix_caching=True, max_batch_size=6, max_prefill_token_num=48)
    facts, scheduler = loop.facts, loop._scheduler
    assert (facts.device, facts.dtype, facts.session_len, facts.max_batch_size) == ("cpu", "float32", 100, 6)
    assert not facts.takes_media
    stats = scheduler.stats()
    assert (stats.num_kv_blocks, stats.num_host_kv_blocks, loop._runner.block_size) == (12, 5, 16)
    config = scheduler.config
    assert (config.max_prefill_token_num, config.max_streamed_tokens, config.max_encoding_tokens) == (48, 368, None)
    assert loop._runner.limits.max_step_tokens == 48 and loop._runner.limits.max_verified_tokens == 0


def test_a_cpu_jumps_unless_an_option_says_otherwise(load: Callable[..., Any]) -> None:
    jumps = load()._grammars.masks._jumps
    assert (jumps.session_len, jumps.has_graphs) == (100, False)
    assert load(jump_ahead=False)._grammars.masks._jumps is None


@pytest.mark.parametrize(
    ("options", "core", "expected"),
    [
        ({}, {}, CPU_LIMIT_S),
        ({"step_timeout_s": 77.0}, {}, 77.0),
        ({"step_timeout_s": 77.0}, {"is_watched": True}, None),
    ],
)
def test_a_core_watches_itself_unless_another_process_does(
    load: Callable[..., Any], options: dict[str, Any], core: dict[str, Any], expected: float | None
) -> None:
    assert load(core=core, **options)._hang_limit_s == expected


def test_steps_are_timed_where_their_length_is_limited(load: Callable[..., Any]) -> None:
    policy: Any = load(max_step_ms=250)._scheduler._policy
    assert isinstance(policy, TimedSteps) and policy.max_step_s == 0.25
    assert not isinstance(load()._scheduler._policy, TimedSteps)


def test_weights_of_a_tower_in_another_process_are_not_replaced_here(load: Callable[..., Any]) -> None:
    opened: list[Any] = []

    class Remote:
        device = torch.device("cpu")

        def close(self) -> None:
            opened.append("closed")

    def open_remote(model: Any, config: Any, *, device: Any, dtype: Any) -> Any:
        opened.append((device, dtype))
        return Remote()

    loop = load("qwen2_5_vl", core={"open_remote": open_remote})
    assert opened == [(torch.device("cpu"), torch.float32)] and loop.control is None and loop.facts.takes_media
    loop = load("qwen2_5_vl", deterministic=True)
    assert loop.control is not None and loop.embeddings._config.max_batch_size == 1
    assert load("qwen2_5_vl").embeddings._config.max_batch_size == 3


def test_what_proposes_is_made_with_room_for_its_tokens(load: Callable[..., Any]) -> None:
    loop = load(speculative={"num_speculative_tokens": 2})
    assert loop.steps.speculation is not None and loop._runner.limits.max_verified_tokens == 128
    assert load().steps.speculation is None


# --- a rehearsal ------------------------------------------------------------------------------------------------------

REHEARSE = """
import json, sys
from pathlib import Path
from seesay.config import EngineConfig
from seesay.engine.core.loading.loading import rehearse
from seesay.engine.opened_model import open_model
from seesay.kernels.absent_gpu import Gpu, absent_gpu

found = []
for session_len, given, num_ranks in json.loads(sys.argv[2]):
    with absent_gpu(Gpu((9, 0), 227 << 10), None):
        config = EngineConfig(
            block_size=16, max_prefill_token_num=16, max_batch_size=2, session_len=session_len, num_gpu_blocks=given,
            num_cpu_blocks=9, **num_ranks,
        )
        runner, tower = rehearse(open_model(Path(sys.argv[1]), config), config)
    sizes = [linear.out_features for linear in runner.decoder.linears.values()]
    found.append([runner.num_blocks, len(sizes), sizes[0], runner.device.type, tower.device.type])
print(json.dumps(found))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_a_rehearsal_has_blocks_for_the_longest_sequence(tiny_checkpoint: Callable[[str], Path]) -> None:
    """In a process of its own, which takes all tensors for those of a GPU. One of two ranks has half of each layer, or
    half of the layers."""
    cases: list[list[Any]] = [[33, 0, {}], [32, 0, {}], [33, 7, {}], [33, 0, {"tp": 2}], [33, 0, {"pp": 2}]]
    arguments = [str(tiny_checkpoint("qwen2_5_vl")), json.dumps(cases)]
    shown = subprocess.run(
        [sys.executable, "-c", REHEARSE, *arguments], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    found = json.loads(shown.splitlines()[-1])
    assert [[number, *devices] for number, _, _, *devices in found] == [
        [number, "meta", "meta"] for number in (3, 2, 7, 3, 3)
    ]
    (_, num_layers, num_outputs, *_), *_, half, stage = found
    assert half[1:3] == [num_layers, num_outputs // 2] and stage[1] < num_layers and stage[2] == num_outputs
