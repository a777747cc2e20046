"""The engine on `examples/my_device`, whose memory nothing else can read: its tokens are those of the CPU."""

from __future__ import annotations

import ctypes
import gc
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import make_conversations
from my_device.device import read_counters, set_capacity
from my_device.graphs import CalledAgain
from my_device.ops import MyOps
from on_device import DEMO, GREEDY, ask, count_crossings, load_device, make_prompts, open_engine
from other_weights import copy_with_other_weights
from PIL import Image
from quantized_folders import FORMS, PACKED_FORMS, write_quantized

from seesay import VisionConfig
from seesay.device.registry import accelerator_of
from seesay.encoders.worker import EncoderWorker
from seesay.errors import CheckpointError, ConfigError
from seesay.offline.pipeline import Pipeline

NPU = torch.device(load_device())


SCHEMA = {"type": "object", "properties": {"colour": {"enum": ["red", "green", "blue"]}}, "required": ["colour"]}
FORM = {"type": "json_schema", "json_schema": {"name": "colour", "schema": SCHEMA}}
CHOICES: dict[str, dict[str, Any]] = {
    "grammar": {"response_format": FORM, "ignore_eos": False, "max_new_tokens": 40},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": 0.3},
    "drawn": {"do_sample": True, "temperature": 1.3, "top_k": 30, "top_p": 0.9, "random_seed": 7, "logprobs": 2},
    "drawn plainly": {"do_sample": True, "temperature": 1.5, "top_p": 0.95, "random_seed": 3},
    "logprobs": {"logprobs": 3},
    "bans": {"no_repeat_ngram_size": 2, "bad_words": [" the"], "min_new_tokens": 4},
}
"""What is asked of the sampler."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Pipeline]:
    with open_engine("npu") as pipe:
        yield pipe


@pytest.fixture(scope="module")
def reference() -> Iterator[Pipeline]:
    with open_engine("cpu") as pipe:
        yield pipe


@pytest.fixture(scope="module")
def expected(reference: Pipeline) -> list[list[int]]:
    found = ask(reference)
    assert len({tuple(answer) for answer in found}) == len(found), "the prompts tell nothing"
    return found


def test_answers_are_those_of_the_cpu(engine: Pipeline, expected: list[list[int]]) -> None:
    """Pictures, a clip and a text: in a batch, and each again from the prefix cache."""
    assert ask(engine) == expected
    assert [ask(engine, [prompt])[0] for prompt in make_prompts()] == expected
    stats = engine.engine.stats()
    assert stats.num_embeddings > 0 and stats.total_prefix_hit_tokens > 0


def test_grammars_restrict_answers(engine: Pipeline, reference: Pipeline) -> None:
    config = replace(GREEDY, **CHOICES["grammar"])
    found, wanted = (each(make_prompts()[:2], gen_config=config) for each in (engine, reference))
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in wanted]
    assert all(json.loads(answer.text)["colour"] in ("red", "green", "blue") for answer in found)


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "temperature": 1.3, "top_k": 30, "top_p": 0.9, "random_seed": 7, "min_new_tokens": 4},
        {"repetition_penalty": 1.3, "logprobs": 3, "bad_words": [" the"]},
    ],
    ids=("drawn", "changed"),
)
def test_tokens_are_chosen_alike(options: dict[str, Any], engine: Pipeline, reference: Pipeline) -> None:
    config = replace(GREEDY, **options)
    assert ask(engine, gen_config=config) == ask(reference, gen_config=config)


def test_it_sleeps_and_takes_other_weights(engine: Pipeline, expected: list[list[int]], tmp_path: Path) -> None:
    other = copy_with_other_weights(DEMO, tmp_path / "other")
    with open_engine("cpu", other) as pipe:
        changed = ask(pipe)
    used = torch.ops.my_device.read_memory(0)[2]
    engine.sleep(1)
    assert torch.ops.my_device.read_memory(0)[2] < used / 4
    engine.wake_up()
    assert ask(engine) == expected
    engine.update_weights(other)
    assert ask(engine) == changed != expected
    engine.sleep(2)
    engine.update_weights(DEMO)
    engine.wake_up()
    assert ask(engine) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"max_prefill_token_num": 32, "async_scheduling": False, "enable_prefix_caching": False, "eager_mode": True},
        {"vision_config": VisionConfig(device="npu:1"), "max_batch_size": 2},
        {"vision_config": VisionConfig(device="cpu"), "num_gpu_blocks": 0, "cache_max_entry_count": 0.02},
        {"engine_process": True},
        {"vision_config": VisionConfig(own_process=True)},
    ],
    ids=("chunks", "tower elsewhere", "tower on the CPU", "process", "process of the tower"),
)
def test_options_change_nothing(options: dict[str, Any], expected: list[list[int]]) -> None:
    with open_engine("npu", **options) as pipe:
        assert ask(pipe) == expected


def test_its_own_operations_and_graphs_compute(expected: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Size] = []
    attend = MyOps.attend

    def watched(self: MyOps, query: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        calls.append(query.shape)
        return attend(self, query, *args, **options)

    monkeypatch.setattr(MyOps, "attend", watched)
    for eager_mode in (False, True):
        before = CalledAgain.num_replays
        with open_engine("npu", eager_mode=eager_mode) as pipe:
            calls.clear()
            assert ask(pipe) == expected
        assert calls and (CalledAgain.num_replays > before) != eager_mode


def test_an_answer_of_one_token_tells_what_the_tower_did(engine: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only step is known before the tower's worker has told of the call that was computed before it."""
    finish = EncoderWorker._finish

    def finish_late(self: EncoderWorker, launched: Any) -> None:
        time.sleep(0.5)
        finish(self, launched)

    engine.engine.reset_caches()
    monkeypatch.setattr(EncoderWorker, "_finish", finish_late)
    for is_cached in (False, True):
        answer = engine(make_prompts()[0], gen_config=replace(GREEDY, max_new_tokens=1))
        assert [report.is_cached for report in answer.media] == [is_cached]
        assert (answer.timings.encode_s > 0) != is_cached


def test_rows_jump_where_that_saves_steps_of_a_graph(reference: Pipeline) -> None:
    text = "the colour of the large square in the middle of the picture is red"
    config = replace(GREEDY, response_format={"type": "choice", "choice": [text]}, ignore_eos=False, max_new_tokens=60)
    answers = [reference(prompt, gen_config=config) for prompt in make_prompts()[:2]]
    num_steps = []
    for jump_ahead in (False, True):
        before = CalledAgain.num_replays
        with open_engine("npu", jump_ahead=jump_ahead) as pipe:
            found = [pipe(prompt, gen_config=config) for prompt in make_prompts()[:2]]
            assert (pipe.engine.stats().total_jumped_tokens > 0) == jump_ahead
        assert [answer.text for answer in found] == [answer.text for answer in answers] == [text] * 2
        num_steps.append(CalledAgain.num_replays - before)
    assert num_steps[0] > num_steps[1] > 0


def test_steps_are_timed(expected: list[list[int]]) -> None:
    with open_engine("npu", max_step_ms="auto") as pipe:
        assert ask(pipe) == expected


def test_blocks_come_back_from_the_host(expected: list[list[int]]) -> None:
    with open_engine("npu", num_gpu_blocks=32, num_cpu_blocks=120) as pipe:
        for _ in range(10):  # which blocks are on the host depends on which requests meet
            assert ask(pipe) == expected
            if pipe.engine.stats().total_host_kv_loads:
                break
        assert pipe.engine.stats().total_host_kv_loads > 0


@pytest.mark.parametrize(
    ("form", "unpacked_copy"),
    [
        ("compressed-tensors, int8 channels", None),
        ("awq, groups of 32", None),
        ("awq, groups of 32", False),
        ("gptq, symmetric", False),
    ],
)
def test_quantized_weights(
    form: str, unpacked_copy: bool | None, tmp_path: Path, tiny_checkpoint: Callable[[str], Path]
) -> None:
    folder, _ = write_quantized(tiny_checkpoint("llama"), tmp_path, {**FORMS, **PACKED_FORMS}[form])
    prompts = ["the game is in the frame", "a frame and another one"]
    options: dict[str, Any] = {} if unpacked_copy is None else {"unpacked_copy": unpacked_copy}
    for cache in ({}, {"kv_cache_dtype": "int8"}):
        with open_engine("cpu", folder, session_len=None, **cache) as pipe:
            expected = ask(pipe, prompts)
        with open_engine("npu", folder, session_len=None, **cache, **options) as pipe:
            assert ask(pipe, prompts) == expected


def test_frequencies_of_a_long_prompt(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """What they are divided by is float64, which the device has not."""
    folder = shutil.copytree(tiny_checkpoint("llama"), tmp_path / "short")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}))
    found = []
    for device, factor in (("cpu", 3.0), ("npu", 3.0), ("cpu", 1.0)):
        with open_engine(device, folder, rope_scaling_factor=factor) as pipe:
            answer = pipe("the game is in the frame " * 8, gen_config=replace(GREEDY, logprobs=1))
        assert answer.error is None and answer.input_token_len > 64
        assert answer.logprobs is not None
        found.append([value for entry in answer.logprobs for value in entry.values()])
    assert found[1] == pytest.approx(found[0], abs=1e-5)
    assert found[2] != pytest.approx(found[0], abs=1e-5)


@pytest.mark.parametrize("name", ["internvl", "llava", "qwen2_5_vl"])
def test_towers_of_tiles_and_of_any_size(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    folder, found = tiny_checkpoint(name), []
    for device in ("cpu", "npu"):
        with open_engine(device, folder, session_len=None, num_gpu_blocks=200) as pipe:
            found.append(ask(pipe, make_conversations(name)))
    assert found[0] == found[1]


def test_the_largest_step_that_is_filled_up_is_tried(tiny_checkpoint: Callable[[str], Path]) -> None:
    """It takes more than the longest prompt, and the cache leaves room for it."""
    sizes = {"session_len": 64, "max_prefill_token_num": 2048, "num_gpu_blocks": 0, "max_batch_size": 2}
    _, total, used, _ = torch.ops.my_device.read_memory(0)
    set_capacity(used + (512 << 20))
    try:
        with open_engine("npu", tiny_checkpoint("llama"), **sizes) as pipe:
            assert ask(pipe, ["the game is in the frame"])
    finally:
        set_capacity(total)


def test_formats_without_arithmetic_are_refused(tmp_path: Path, tiny_checkpoint: Callable[[str], Path]) -> None:
    with (
        pytest.raises(ConfigError, match=r"kv_cache_dtype='fp8'.*my_device .npu. does not: take 'int8'"),
        open_engine("npu", kv_cache_dtype="fp8"),
    ):
        pass
    folder, _ = write_quantized(tiny_checkpoint("llama"), tmp_path, FORMS["compressed-tensors, channels"])
    with pytest.raises(ConfigError, match=r"FP8.*my_device"), open_engine("npu", folder):
        pass


@pytest.mark.parametrize(("eager_mode", "num_fetched"), [(True, 3), (False, 2)])
def test_a_decode_step_copies_little_and_waits_for_nothing(
    eager_mode: bool, num_fetched: int, expected: list[list[int]]
) -> None:
    """Few tensors go up, whatever the number of layers. Its tokens and their scores come back; without a graph, their
    faults, too."""
    prompts = make_prompts()[:3]
    answers, crossings = count_crossings("npu", prompts, eager_mode=eager_mode)
    assert answers == expected[:3]
    last = max(index for index, crossing in enumerate(crossings) if not crossing.is_decode)
    steps = crossings[last + 1 :]  # no picture is encoded meanwhile
    assert len(steps) > 5
    assert max(crossing.copies_to_device for crossing in steps) <= 8
    assert {crossing.copies_to_host for crossing in steps} == {num_fetched}
    assert {crossing.waits for crossing in crossings} == {0}


@pytest.mark.parametrize(
    ("name", "eager_mode"), [*((name, False) for name in CHOICES), ("penalties", True), ("drawn plainly", True)]
)
def test_choosing_tokens_waits_for_nothing(name: str, eager_mode: bool, reference: Pipeline) -> None:
    """Whatever is asked of the sampler, few tensors more go up and come back in a decode step."""
    config, prompts = replace(GREEDY, **CHOICES[name]), make_prompts()[:3]
    answers, crossings = count_crossings("npu", prompts, config, eager_mode=eager_mode)
    assert answers == ask(reference, prompts, config)
    last = max(index for index, crossing in enumerate(crossings) if not crossing.is_decode)
    steps = crossings[last + 1 :]
    assert len(steps) > 5
    assert max(crossing.copies_to_device for crossing in steps) <= (10 if eager_mode else 5)
    assert max(crossing.copies_to_host for crossing in steps) <= (6 if name in ("drawn", "logprobs") else 3)
    assert {crossing.waits for crossing in crossings} == {0}


def test_out_of_memory_is_told() -> None:
    free, total, used, _ = torch.ops.my_device.read_memory(0)
    assert free + used == total
    try:
        set_capacity(used + (4 << 20))
        errors = (ConfigError, CheckpointError, torch.OutOfMemoryError)
        with pytest.raises(errors, match=r"npu.* is out of memory"), open_engine("npu"):
            pass
    finally:
        set_capacity(total)


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_engine_gives_back_its_memory_without_a_collection(is_closed: bool) -> None:
    """Graphs of steps, and of a tower that has seen several pictures of one size, keep what they compute."""
    pictures = [Image.new("RGB", (64, 64), (40 * k, 0, 0)) for k in range(6)]
    gc.collect()
    used = torch.ops.my_device.read_memory(0)[2]
    gc.disable()
    try:
        with ExitStack() as stack:
            pipe = stack.enter_context(open_engine("npu"))
            for picture in pictures:
                pipe(("what is this?", picture), gen_config=GREEDY)
            assert torch.ops.my_device.read_memory(0)[2] > used + (30 << 20)
            if not is_closed:
                stack.pop_all()
        del pipe, stack
        deadline_s = time.monotonic() + 60
        while torch.ops.my_device.read_memory(0)[2] > used + (1 << 20) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert torch.ops.my_device.read_memory(0)[2] <= used + (1 << 20)  # constants of operations stay
    finally:
        gc.enable()


def test_what_there_is_no_room_for_leaves_nothing_behind() -> None:
    source, target = torch.ones(1 << 20, device=NPU), torch.empty(0, device=NPU)
    _, total, used, _ = torch.ops.my_device.read_memory(0)
    set_capacity(used + (1 << 20))
    out_of_memory = pytest.raises(torch.OutOfMemoryError, match="npu:0 is out of memory")
    try:
        makers: list[Callable[[], torch.Tensor]] = [lambda: torch.empty(1 << 20, device=NPU), lambda: source + source]
        for make in makers:
            for _ in range(50):
                with out_of_memory:
                    make()
        assert torch.ops.my_device.read_memory(0)[2] == used
        with out_of_memory:
            torch.add(source, source, out=target)
    finally:
        set_capacity(total)
    assert torch.add(source, source, out=target).sum().item() == 2 << 20


# --- the device itself ------------------------------------------------------------------------------------------------


def test_a_forgotten_copy_fails() -> None:
    there = torch.ones(3, device=NPU)
    with pytest.raises(RuntimeError, match=r"same device|to be on npu"):
        there + torch.ones(3)
    with pytest.raises(RuntimeError, match="to be on npu"):
        there[torch.tensor([0, 1])]
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    before = read_counters()
    assert there.sum().item() == 3
    after = read_counters()
    assert (after.waits - before.waits, after.copies_to_host - before.copies_to_host) == (1, 1)


def test_numbers_of_64_bits_are_refused() -> None:
    words = torch.ones(3, dtype=torch.int64, device=NPU)
    makers: list[Callable[[], torch.Tensor]] = [
        words.double,
        lambda: words.view(torch.float64),
        lambda: torch.empty(3, dtype=torch.float64, device=NPU),
        lambda: torch.ones(3, dtype=torch.float64).to(NPU),
    ]
    for make in makers:
        with pytest.raises(TypeError, match="npu has no float64"):
            make()


def test_its_memory_cannot_be_read() -> None:
    program = (
        "import ctypes, torch; from seesay.device.query import pick_device; "
        "x = torch.ones(3, device=pick_device('npu')); assert x.cpu().tolist() == [1] * 3; print('here', flush=True); "
        "ctypes.string_at(x.data_ptr(), 4)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "here\n" and done.returncode < 0
    assert ctypes.string_at(torch.ones(3).data_ptr(), 4) == b"\x00\x00\x80?"


def test_it_is_what_torch_calls_the_accelerator() -> None:
    assert torch.accelerator.current_accelerator() == NPU
    kind = accelerator_of(NPU)
    assert kind.label == "my_device" and kind.count() == torch.accelerator.device_count() == 2
    stream = kind.make_stream(NPU, is_urgent=True)
    assert stream is not None
    with kind.use_stream(stream):
        event = stream.record_event()
        assert kind.current_stream(NPU) == stream and event.query()
    assert kind.current_stream(NPU) != stream
    peak = kind.measure_peak(NPU, lambda: torch.ones(1 << 20, device=NPU).add(1))
    assert peak == 2 * 4 << 20
