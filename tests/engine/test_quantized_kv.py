"""Answers with a quantized KV cache: the same alone, batched, in chunks, from the cache, preempted and from the host,
in a thread and in an engine process, for text and for each kind of media."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import ask, ask_in_order, loop_of, make_conversations, make_video_prompt, parse
from quantized_folders import FORMS, edit_tensors, set_config, write_quantized

from seesay import GenerationConfig, pipeline
from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.response import Response
from seesay.errors import ConfigError
from seesay.values import Modality

NEW_TOKENS = 24
MODELS = ("llama", "mistral", "phi3_longrope", "qwen2_vl", "qwen2_5_vl", "llava", "internvl", "deepseek_v2")
"""Plain text; a sliding window of 32; keys that are computed again at 40 tokens; each kind of tower and of
positions; latent rows."""
KV_FORMATS = ("int8", "int4", "fp8")
CASES = [
    ("llama", "int8"),
    ("qwen2_5_vl", "int8"),
    ("internvl", "int8"),
    ("mistral", "int4"),
    ("phi3_longrope", "fp8"),
    ("deepseek_v2", "fp8"),
]
IN_A_PROCESS = (("qwen2_5_vl", "int8"), ("phi3_longrope", "fp8"))
SLOW_CASES = [
    *((name, "int8") for name in MODELS if (name, "int8") not in CASES),
    *itertools.product(("phi3_longrope", "qwen2_5_vl"), ["int4"]),
    *itertools.product(("mistral", "qwen2_5_vl"), ["fp8"]),
]


def open_engine(path: Path, **options: Any) -> AsyncEngine:
    config = EngineConfig(**{"device_type": "cpu", "kv_cache_dtype": "int8", **options})
    return AsyncEngine(str(path), backend_config=config)


def make_requests(engine: AsyncEngine, name: str) -> list[Any]:
    conversations = make_conversations(name)
    if Modality.VIDEO in engine.family.markers:
        conversations.append(make_video_prompt(name))
    return parse(conversations, max_new_tokens=NEW_TOKENS, ignore_eos=True)


def answers_of(outputs: list[Response]) -> list[list[int]]:
    assert all(output.error is None for output in outputs), [output.error for output in outputs]
    return [list(output.token_ids) for output in outputs]


@pytest.mark.parametrize(
    ("name", "format"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)]
)
def test_answers_are_the_same_in_every_way(name: str, format: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint(name)
    with open_engine(path, block_size=16, kv_cache_dtype=format) as engine:
        requests = make_requests(engine, name)
        expected = answers_of([ask(engine, [request])[0] for request in requests])
        assert answers_of(ask(engine, requests)) == expected, "batched, from the cache"
        longest = NEW_TOKENS + max(output.usage.prompt_tokens for output in ask(engine, requests) if output.usage)
    tight = {"kv_cache_dtype": format, "block_size": 4, "num_gpu_blocks": -(-longest // 4) + 2}
    with open_engine(path, max_prefill_token_num=7, async_scheduling=True, num_cpu_blocks=500, **tight) as engine:
        assert answers_of(ask_in_order(engine, requests)) == expected, "in chunks, one step ahead, from the host"
        stats = engine.stats()
        assert stats.total_preemptions > 0 and stats.total_host_kv_loads > 0
    in_process = (name, format) in (*IN_A_PROCESS, *SLOW_CASES)
    with open_engine(path, enable_prefix_caching=False, engine_process=in_process, **tight) as engine:
        assert answers_of(ask_in_order(engine, requests)) == expected, "without prefixes"
        assert engine.stats().total_preemptions > 0


@pytest.mark.parametrize(
    ("name", "format"),
    [*(("qwen2_5_vl", format) for format in KV_FORMATS), ("deepseek_v2", "int8")],
)
def test_logits_are_near_those_of_a_plain_cache(name: str, format: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint(name)
    logits = []
    for kind in (format, "auto"):
        with open_engine(path, kv_cache_dtype=kind) as engine:
            [output] = ask(engine, parse(make_conversations(name)[-1:], max_new_tokens=1, output_logits="all"))
            logits.append(output.logits)
            layouts = loop_of(engine)._runner.kv_layouts
            assert {layout.format for layout in layouts} == {"plain" if kind == "auto" else format}
    found, expected = logits
    error = float((found - expected).norm() / expected.norm())
    assert 1e-5 < error < {"int8": 0.01, "fp8": 0.05, "int4": 0.2}[format]


def test_latent_rows_are_not_kept_in_four_bits(tiny_checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="latent rows are not kept in int4: take kv_cache_dtype='fp8', 'int8'"):
        open_engine(tiny_checkpoint("deepseek_v2"), kv_cache_dtype="int4")


def test_lmdeploys_name_is_the_same_option() -> None:
    answers = []
    for config in (EngineConfig(quant_policy=8), EngineConfig(kv_cache_dtype="int8")):
        with pipeline(backend_config=config) as pipe:
            answers.append(pipe("What is 3 + 4?", gen_config=GenerationConfig(max_new_tokens=16, do_sample=False)).text)
    assert answers[0] == answers[1] and "7" in answers[0]


def test_a_checkpoint_can_ask_for_an_fp8_cache(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As llm-compressor writes it, with scales that are not read; an option says otherwise."""
    form = FORMS["compressed-tensors, channels"]
    folder, _ = write_quantized(tiny_checkpoint("llama"), tmp_path, form)
    prompts = parse(["the game"], max_new_tokens=12, ignore_eos=True)
    with open_engine(folder, kv_cache_dtype="fp8") as engine:
        expected = answers_of(ask(engine, prompts))

    def add_scales(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            if name.endswith("k_proj.weight"):
                for kind in ("k_scale", "v_scale"):
                    tensors[name.replace("k_proj.weight", kind)] = torch.tensor([0.1])

    edit_tensors(folder, add_scales)
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    set_config(folder, quantization_config={**form.config, "kv_cache_scheme": scheme})
    for option, format in (("auto", "fp8"), ("int8", "int8")):
        with open_engine(folder, kv_cache_dtype=option) as engine:
            assert {layout.format for layout in loop_of(engine)._runner.kv_layouts} == {format}
            answers = answers_of(ask(engine, prompts))
            assert format != "fp8" or answers == expected
