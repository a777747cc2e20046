"""What the builders make of DashInfer's options, and which they refuse by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig as TransformersConfig

from seesay import low_level
from seesay.config import EngineConfig, GenerationConfig, MediaLimits, VisionConfig
from seesay.errors import ConfigError
from seesay.low_level import (
    CacheMode,
    GenerationConfigBuilder,
    RequestConfig,
    RuntimeConfig,
    RuntimeConfigBuilder,
    TargetDevice,
)


def test_a_runtime_configuration_has_what_was_set() -> None:
    builder = RuntimeConfigBuilder().model_name("m").model_dir("folder").compute_unit(TargetDevice.CUDA, [1])
    builder.max_batch(32).max_length(2048).kv_cache_mode(CacheMode.QUANT_U4).prefill_cache(False)
    builder.engine_options(cache_max_entry_count=0.4).vision_config(VisionConfig(max_batch_size=2))
    builder.chat_template("chatml").media_limits(MediaLimits())
    assert builder.build() == RuntimeConfig(
        model_name="m",
        model_path="folder",
        engine_config=EngineConfig(
            device_type="cuda:1",
            max_batch_size=32,
            session_len=2048,
            kv_cache_dtype="int4",
            enable_prefix_caching=False,
            cache_max_entry_count=0.4,
        ),
        vision_config=VisionConfig(max_batch_size=2),
        chat_template_config="chatml",
        media_limits=MediaLimits(),
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b: b.model_name("m").build(), r"model_path is missing: call model_dir\(…\) before build"),
        (lambda b: b.model_dir("x").build(), "model_name is missing"),
        (lambda b: b.model_name(""), "model_name must be a string that is not empty, got ''"),
        (lambda b: b.model_name(3), "model_name must be a string that is not empty, got 3"),
        (lambda b: b.compute_unit("cuda", 0), "device_list must have the number of one device, got 0"),
        (lambda b: b.max_length("x"), "max_length: session_len must be .* got 'x'"),
        (lambda b: b.prefill_cache(3), "prefill_cache: enable_prefix_caching must be .* got 3"),
        (lambda b: b.compute_unit("cpu_numa"), "compute_unit must be one of cuda, cpu, got 'cpu_numa'"),
        (lambda b: b.compute_unit("cuda", [0, 1]), r"device_list must have the number of one device, got \[0, 1\]"),
        (lambda b: b.kv_cache_mode("u2"), "kv_cache_mode must be one of auto, int8, int4, got 'u2'"),
        (lambda b: b.max_batch(0), r"max_batch_size must be in \[1, 65536\], or None, got 0"),
        (lambda b: b.engine_options(bfc=1), "EngineConfig has no 'bfc'"),
    ],
)
def test_wrong_runtime_options_are_named(build: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(RuntimeConfigBuilder())


def test_a_generation_configuration_has_what_was_set() -> None:
    builder = GenerationConfigBuilder().do_sample().temperature(0.7).top_k(5).top_p(0.9).min_p(0.1).seed(3)
    builder.max_length(512).max_new_tokens(100).min_length(4).early_stopping(False).eos_token_id(7).eos_token_id(8)
    builder.stop_words_ids([[1, 2]]).repetition_penalty(1.0).presence_penalty(0.5).frequency_penalty(0.25)
    builder.suppress_repetition_in_generation().no_repeat_ngram_size(3).length_penalty(1.0).lora_name("").mm_info(None)
    builder.logprobs().top_logprobs(3).options(bad_token_ids=[9])
    assert builder.build() == RequestConfig(
        generation=GenerationConfig(
            do_sample=True,
            temperature=0.7,
            top_k=5,
            top_p=0.9,
            min_p=0.1,
            random_seed=3,
            max_new_tokens=100,
            min_new_tokens=4,
            ignore_eos=True,
            stop_token_ids=[7, 8],
            presence_penalty=0.5,
            frequency_penalty=0.25,
            logprobs=3,
            bad_token_ids=[9],
            no_repeat_ngram_size=3,
        ),
        max_length=512,
        stop_words_ids=[[1, 2]],
    )
    form = {"type": "json_object"}
    assert GenerationConfigBuilder().response_format(form).build().generation.response_format == form
    assert GenerationConfigBuilder().top_logprobs(3).build().generation.logprobs is None
    assert GenerationConfigBuilder().top_logprobs(3).logprobs().logprobs(False).build().generation.logprobs is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b: b.length_penalty(1.2), "length_penalty is not supported, only 1.0, got 1.2"),
        (lambda b: b.lora_name("a"), "lora_name is not supported, only '', got 'a'"),
        (lambda b: b.mm_info(object()), r"mm_info is not supported: give \(text, picture\) or messages"),
        (lambda b: b.top_p(2.0), r"top_p must be in \(0, 1\], got 2.0"),
        (lambda b: b.options(n=2), "n=2: a queue has one answer; start a request for each"),
        (lambda b: b.options(best_of=2), "best_of=2: a queue has one answer"),
        (lambda b: b.options(top_kk=2), "GenerationConfig has no 'top_kk'"),
        (
            lambda b: b.repetition_penalty(1.1).suppress_repetition_in_generation().build(),
            "repetition_penalty=1.1 must",
        ),
        (lambda b: b.max_length(1), "max_length must be at least 2"),
        (lambda b: b.max_length("x"), "max_length must be an integer or None, got 'x'"),
        (lambda b: b.stop_words_ids([[]]), "stop_words_ids must be a list of non-empty lists of token ids"),
        (lambda b: b.stop_words_ids(3), "stop_words_ids must be a list .* got 3"),
        (lambda b: b.top_logprobs(5000), r"top_logprobs: logprobs must be in \[0, 1024\], got 5000"),
        (lambda b: b.top_logprobs(None), "top_logprobs must be an integer, got None"),
        (lambda b: b.logprobs(2), "logprobs must be True or False, got 2"),
        (lambda b: b.early_stopping("no"), "early_stopping must be True or False, got 'no'"),
        (lambda b: b.suppress_repetition_in_generation(1), "suppress_repetition_in_generation must be True or False"),
        (lambda b: b.do_sample("yes"), "do_sample must be True or False, got 'yes'"),
        (lambda b: b.min_length(-1), "min_length: min_new_tokens must be at least 0, got -1"),
        (lambda b: b.seed("x"), "seed: random_seed must be an integer or None, got 'x'"),
        (lambda b: b.eos_token_id("x"), r"eos_token_id: stop_token_ids must be a list .* got \['x'\]"),
        (lambda b: b.response_format({"type": "x"}), "response_format.type must be one of"),
        (lambda b: b.options(ignore_eos=3), "options: ignore_eos must be True or False, got 3"),
        (lambda b: b.min_length(9).max_new_tokens(8).build(), "min_new_tokens must be at most max_new_tokens=8, got 9"),
    ],
)
def test_wrong_generation_options_are_named(build: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(GenerationConfigBuilder())


def test_a_long_answer_may_have_a_long_least_length() -> None:
    assert GenerationConfigBuilder().min_length(5000).build().generation.min_new_tokens == 5000


def test_the_page_names_what_there_is() -> None:
    """Names of the right column of its table, which are those of this package."""
    page = (Path(__file__).parents[2] / "docs" / "low_level_engine.md").read_text(encoding="utf-8")
    table = page.partition("## DashInfer's names")[2]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 60
    owners = [low_level, low_level.Engine, RuntimeConfigBuilder, GenerationConfigBuilder, low_level.ResultQueue]
    known = {name for owner in owners for name in dir(owner)}
    known |= {field.name for field in fields(low_level.GeneratedElements)}
    known |= {name for kind in (TargetDevice, CacheMode, low_level.GenerateRequestStatus) for name in kind.__members__}
    others = {
        "do_preprocess",
        "pipe.beam_search",
        "beam_search",
        "OMP_NUM_THREADS",
        "numactl",
        "path",
        "name",
        "seesay lite",
        "quantization",
    }
    for _, here in rows:
        for code in re.findall(r"`([^`]+)`", here):
            name = re.split(r"[(=…]", code)[0].removeprefix("engine.").lstrip(".").rpartition(".")[2]
            assert name in known | others | {each.name for each in fields(GenerationConfig)}, code


def test_a_recommended_configuration_is_taken_over() -> None:
    given = {"do_sample": True, "top_k": 20, "temperature": 0.6, "eos_token_id": [1, 2], "transformers_version": "5"}
    for form in (given, TransformersConfig(**given)):
        config = GenerationConfigBuilder(form).build()
        assert (config.generation.do_sample, config.generation.top_k, config.generation.temperature) == (True, 20, 0.6)
        assert config.generation.stop_token_ids is None
    assert GenerationConfigBuilder({"max_length": 99}).build().max_length == 99
    config = GenerationConfigBuilder({"max_length": 99, "max_new_tokens": 7}).build()
    assert (config.max_length, config.generation.max_new_tokens) == (None, 7)
