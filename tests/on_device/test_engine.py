"""The engine on `examples/my_device`, whose memory nothing else can read: its tokens are those of the CPU."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from my_device.device import read_counters, set_capacity
from on_device import DEMO, GREEDY, ask, ask_cpu, count_crossings, load_device, make_prompts, open_engine
from other_weights import copy_with_other_weights
from quantized_folders import FORMS, PACKED_FORMS, write_quantized

from seesay import VisionConfig
from seesay.device.registry import accelerator_of
from seesay.errors import CheckpointError, ConfigError

NPU = torch.device(load_device())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"eager_mode": True},
        {"max_prefill_token_num": 32},
        {"async_scheduling": False, "enable_prefix_caching": False},
        {"kv_cache_dtype": "int8"},
        {"jump_ahead": True, "max_step_ms": None},
        {"num_gpu_blocks": 44, "num_cpu_blocks": 60},
        {"num_gpu_blocks": 0, "cache_max_entry_count": 0.02},
        {"vision_config": VisionConfig(device="npu:1")},
        {"vision_config": VisionConfig(device="cpu")},
        {"max_batch_size": 1},
    ],
    ids=lambda options: ",".join(options) or "plain",
)
def test_answers_are_those_of_the_cpu(options: dict[str, Any]) -> None:
    """Pictures, clips and texts; in a batch, in chunks, and each again from the prefix cache."""
    quantized = {key: value for key, value in options.items() if key == "kv_cache_dtype"}
    if quantized:
        with open_engine("cpu", **quantized) as pipe:
            expected = ask(pipe)
    else:
        expected = ask_cpu()
    assert len({tuple(answer) for answer in expected}) == len(expected), "the prompts tell nothing"
    with open_engine("npu", **options) as pipe:
        assert ask(pipe) == expected
        assert [ask(pipe, [prompt])[0] for prompt in make_prompts()] == expected
        stats = pipe.engine.stats()
        assert stats.num_embeddings > 0
        if options.get("enable_prefix_caching", True):
            assert stats.total_prefix_hit_tokens > 0


def test_blocks_come_back_from_the_host() -> None:
    with open_engine("npu", num_gpu_blocks=44, num_cpu_blocks=120) as pipe:
        for _ in range(3):
            assert ask(pipe) == ask_cpu()
        assert pipe.engine.stats().total_host_kv_loads > 0


def test_an_engine_process_answers() -> None:
    with open_engine("npu", engine_process=True) as pipe:
        assert ask(pipe) == ask_cpu()


def test_grammars_restrict_answers() -> None:
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    config = replace(GREEDY, response_format=form, ignore_eos=False, max_new_tokens=40)
    with open_engine("npu") as pipe, open_engine("cpu") as reference:
        found, expected = (each(make_prompts()[:2], gen_config=config) for each in (pipe, reference))
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in expected]
    assert all(isinstance(json.loads(answer.text)["number"], int) for answer in found)


def test_drawn_tokens_are_those_of_the_cpu() -> None:
    config = replace(GREEDY, do_sample=True, temperature=1.3, top_k=30, top_p=0.9, random_seed=7, min_new_tokens=4)
    penalties = replace(GREEDY, repetition_penalty=1.3, logprobs=3)
    for each in (config, penalties):
        with open_engine("npu") as pipe, open_engine("cpu") as reference:
            assert ask(pipe, gen_config=each) == ask(reference, gen_config=each)


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
    with open_engine("cpu", folder, session_len=None) as pipe:
        expected = ask(pipe, prompts)
    with open_engine("npu", folder, session_len=None, **options) as pipe:
        assert ask(pipe, prompts) == expected


def test_formats_without_arithmetic_are_refused(tmp_path: Path, tiny_checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype='fp8'.*my_device .npu. does not: take 'int8'"), open_engine(
        "npu", kv_cache_dtype="fp8"
    ):
        pass
    folder, _ = write_quantized(tiny_checkpoint("llama"), tmp_path, FORMS["compressed-tensors, channels"])
    with pytest.raises(ConfigError, match="FP8.*my_device"), open_engine("npu", folder):
        pass


def test_it_sleeps_and_takes_other_weights(tmp_path: Path) -> None:
    other = copy_with_other_weights(DEMO, tmp_path / "other")
    with open_engine("cpu", other) as pipe:
        changed = ask(pipe)
    with open_engine("npu") as pipe:
        assert ask(pipe) == ask_cpu()
        used = torch.ops.my_device.read_memory(0)[2]
        pipe.sleep(1)
        assert torch.ops.my_device.read_memory(0)[2] < used / 4
        pipe.wake_up()
        assert ask(pipe) == ask_cpu()
        pipe.update_weights(other)
        assert ask(pipe) == changed
        pipe.sleep(2)
        pipe.update_weights(DEMO)
        pipe.wake_up()
        assert ask(pipe) == ask_cpu()


def test_a_decode_step_copies_little_and_waits_for_nothing() -> None:
    """Few tensors go up, whatever the number of layers; its tokens, their scores and their faults come back."""
    prompts = make_prompts()[:3]
    answers, crossings = count_crossings("npu", prompts)
    assert answers == ask_cpu()[:3]
    steps = [crossing for crossing in crossings if crossing.is_decode]
    assert len(steps) > 10
    assert max(crossing.copies_to_device for crossing in steps) <= 8
    assert {crossing.copies_to_host for crossing in steps} == {3}
    assert {crossing.waits for crossing in crossings} == {0}


def test_out_of_memory_is_told_and_survived() -> None:
    free, total, used, _ = torch.ops.my_device.read_memory(0)
    assert free + used == total
    try:
        set_capacity(used + (20 << 20))
        with pytest.raises((ConfigError, CheckpointError, torch.OutOfMemoryError, MemoryError)), open_engine("npu"):
            pass
    finally:
        set_capacity(total)
    with open_engine("npu") as pipe:
        assert ask(pipe) == ask_cpu()


# --- the device itself ------------------------------------------------------------------------------------------------


def test_a_forgotten_copy_fails() -> None:
    there = torch.ones(3, device=NPU)
    with pytest.raises(RuntimeError, match="same device|to be on npu"):
        there + torch.ones(3)
    with pytest.raises(RuntimeError, match="to be on npu"):
        there[torch.tensor([0, 1])]
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    before = read_counters()
    assert there.sum().item() == 3
    after = read_counters()
    assert (after.waits - before.waits, after.copies_to_host - before.copies_to_host) == (1, 1)


def test_its_memory_cannot_be_read() -> None:
    program = (
        "import ctypes, torch; from seesay.device.query import pick_device; "
        "x = torch.ones(3, device=pick_device('npu')); assert x.cpu().tolist() == [1, 1, 1]; print('here', flush=True); "
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
