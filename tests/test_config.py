"""Options of wrong types and values are refused when a configuration is made, by name."""

from __future__ import annotations

import inspect
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seesay.config import (
    ChatTemplateConfig,
    EngineConfig,
    GenerationConfig,
    MediaLimits,
    TurbomindEngineConfig,
    VisionConfig,
)
from seesay.device.query import pick_device
from seesay.errors import ConfigError
from seesay.serving.settings import ServerSettings
from seesay.system.log import set_up_logging


@pytest.mark.parametrize(
    ("config", "option", "values"),
    [
        (EngineConfig, "session_len", [1.5, True, "8", math.inf, 0]),
        (EngineConfig, "max_step_ms", [0, -1, 1.5, True, "40", math.inf, 1 << 30]),
        (EngineConfig, "tp", [None, "1", 0, 65, True, 2.0]),
        (EngineConfig, "block_size", [None, 64.0, False]),
        (EngineConfig, "cache_max_entry_count", ["0.5", None, math.nan, math.inf, True, 0]),
        (EngineConfig, "dtype", [None, ["float16"], "int8"]),
        (EngineConfig, "eager_mode", [1, "no", None]),
        (EngineConfig, "engine_process", [1, "no", 0]),
        (EngineConfig, "step_timeout_s", [0, -1.0, "10", float("inf"), True]),
        (EngineConfig, "device_type", [None, 0]),
        (EngineConfig, "hf_overrides", [[], "a=1", {1: 2}]),
        (EngineConfig, "plugins", [None, "mine.py", [3]]),
        (EngineConfig, "custom_module_map", [3, ["a.py"], {"A": 3}]),
        (TurbomindEngineConfig, "max_batch_size", ["4", 2.0]),
        (TurbomindEngineConfig, "num_tokens_per_iter", [None, "x"]),
        (VisionConfig, "max_batch_size", ["8", None, 0, True]),
        (VisionConfig, "embedding_cache_bytes", [1e9, None, -1]),
        (GenerationConfig, "max_new_tokens", [None, 1.5, "9", math.inf, True, 0]),
        (GenerationConfig, "temperature", [None, "1", math.nan, math.inf]),
        (GenerationConfig, "do_sample", [None, 1, "yes"]),
        (GenerationConfig, "random_seed", ["x", 1.0]),
        (GenerationConfig, "stop_words", [3, "abc", [3], [""], ["\ud800"]]),
        (GenerationConfig, "stop_token_ids", [3, "12", ["1"], [-1], [True]]),
        (GenerationConfig, "logit_bias", [[1], {1: "a"}, {"1": 1}, {1: math.nan}, {-1: 0}]),
        (GenerationConfig, "logits_processors", [3, [3], print]),
        (GenerationConfig, "output_logits", ["some", True]),
        (MediaLimits, "max_bytes", ["1", None, 1.5, True]),
        (MediaLimits, "timeout_s", ["1", None, math.nan, math.inf]),
        (MediaLimits, "allow_private_hosts", [None, 1]),
        (MediaLimits, "allowed_media_domains", ["example.com", 5, [5]]),
        (ServerSettings, "port", ["80", None, 80.5]),
        (ServerSettings, "api_keys", ["key", [b"key"]]),
    ],
)
def test_wrong_types_and_values_name_the_option(config: Any, option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=option):
            config(**{option: value})


def test_numbers_beyond_all_limits_are_refused_by_name() -> None:
    config: Any = GenerationConfig
    for option in ("n", "max_new_tokens", "logprobs", "top_p", "repetition_penalty", "temperature"):
        with pytest.raises(ConfigError, match=f"^{option} must be .* got a number of many digits$"):
            config(**{option: -(10**5000)})


def test_unpaired_surrogates_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^model_name must be a string, got '\\ud800' with unpaired surrogates$"):
        ChatTemplateConfig("\ud800")


def test_more_tokens_than_the_answer_may_have_are_refused() -> None:
    assert GenerationConfig(min_new_tokens=8, max_new_tokens=8).min_new_tokens == 8
    with pytest.raises(ConfigError, match=r"^min_new_tokens must be at most max_new_tokens=8, got 9"):
        GenerationConfig(min_new_tokens=9, max_new_tokens=8)


def test_what_is_wrong_with_a_template() -> None:
    wrong: dict[str, Any]
    for wrong in ({"user": 5}, {"stop_words": "abc"}, {"stop_words": [1]}, {"capability": "xx"}, {"model_name": None}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ChatTemplateConfig(**({"model_name": "chatml"} | wrong))


def test_numbers_of_numpy_and_paths_are_fine(tmp_path: Path) -> None:
    config = GenerationConfig(max_new_tokens=np.int64(4), temperature=np.float32(0.5), stop_token_ids=[np.int32(3)])  # type: ignore[arg-type, list-item]
    assert config.max_new_tokens == 4
    assert EngineConfig(download_dir=tmp_path).download_dir == tmp_path
    template = ChatTemplateConfig("x", model_path=Path("a.jinja"))
    assert ChatTemplateConfig.from_json(template.to_json()).model_path == "a.jinja"


# --- options of LMDeploy that seesay does not have -----------------------------------------------------------------


def test_defaults_of_lmdeploy_are_taken() -> None:
    assert EngineConfig(dp=1, ep=1, attn_tp_size=None, enable_metrics=True, block_size=32) == EngineConfig(  # type: ignore[call-arg]
        block_size=32
    )
    assert TurbomindEngineConfig(**{"async": 1}, devices=None) == TurbomindEngineConfig()  # type: ignore[arg-type, call-arg]
    assert GenerationConfig(with_cache=False, preserve_cache=False) == GenerationConfig()  # type: ignore[call-arg]
    assert VisionConfig(thread_safe=False) == VisionConfig()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("config", "option", "value"),
    [
        (EngineConfig, "dp", 2),
        (EngineConfig, "ep", True),
        (EngineConfig, "enable_metrics", False),
        (EngineConfig, "empty_init", True),
        (TurbomindEngineConfig, "devices", [0, 1]),
        (GenerationConfig, "return_routed_experts", True),
        (GenerationConfig, "return_routed_experts", np.zeros(2)),
    ],
)
def test_anything_else_is_refused_by_name(config: Any, option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{config.__name__}.{option}=.* is not supported"):
        config(**{option: value})


@pytest.mark.parametrize(("backend", "tp"), [("ray", 1), ("uni", 2)])
def test_where_ranks_run_must_fit_their_number(backend: Any, tp: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"distributed_executor_backend must be .* with {tp} ranks?, got '{backend}'"
    ):
        EngineConfig(tp=tp, distributed_executor_backend=backend)
    assert EngineConfig(tp=3 - tp, distributed_executor_backend=backend)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pp": 3}, "pp must be 1 or 2, got 3"),
        ({"pp": 2, "tp": 2}, "pp must be 1 with tp=2"),
        ({"pp": 2, "adapters": {"a": "b"}}, "pp must be 1 with adapters"),
        ({"pp": 2, "engine_process": False}, "engine_process must be True or None with 2 ranks"),
    ],
)
def test_stages_stand_alone(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**options)


def test_ranks_are_processes() -> None:
    with pytest.raises(ConfigError, match=r"engine_process must be True or None with 2 ranks: .*, got False"):
        EngineConfig(tp=2, engine_process=False)


def test_the_two_names_of_a_quantized_kv_cache_agree() -> None:
    assert EngineConfig().kv_format is None
    assert EngineConfig(quant_policy=8).kv_format == EngineConfig(kv_cache_dtype="int8").kv_format == "int8"
    assert EngineConfig(quant_policy=4, kv_cache_dtype="int4").kv_format == "int4"
    assert EngineConfig(kv_cache_dtype="fp8_e4m3").kv_format == EngineConfig(kv_cache_dtype="fp8").kv_format == "fp8"
    assert TurbomindEngineConfig(quant_policy=8).to_engine_config().kv_format == "int8"
    with pytest.raises(ConfigError, match="kv_cache_dtype must be 'int8' or 'auto' with quant_policy=8, got 'fp8'"):
        EngineConfig(quant_policy=8, kv_cache_dtype="fp8")
    for wrong in ({"quant_policy": 2}, {"quant_policy": True}, {"kv_cache_dtype": "fp8_e5m2"}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be one of .*, got"):
            EngineConfig(**wrong)


@pytest.mark.parametrize("name", ["awq", "gptq", "int4"])
def test_weights_of_four_bits_are_made_by_lite(name: str) -> None:
    with pytest.raises(ConfigError, match=f"`seesay lite auto_awq` or `auto_gptq` writes a checkpoint.* got '{name}'"):
        EngineConfig(quantization=name)  # type: ignore[arg-type]


def test_configurations_still_are_frozen_dataclasses() -> None:
    config = GenerationConfig(max_new_tokens=3)
    assert replace(config, top_k=1) == GenerationConfig(max_new_tokens=3, top_k=1)
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301
    assert "temperature" in inspect.signature(GenerationConfig).parameters
    with pytest.raises(AttributeError):
        config.top_k = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="GenerationConfig takes keyword arguments only"):
        GenerationConfig(1, 512)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'nonsense'"):
        GenerationConfig(nonsense=1)  # type: ignore[call-arg]


# --- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu:0", "cpu:1", "tpu", "meta"])
def test_devices_are_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"device_type must be .*, got '{name}'"):
        pick_device(name)


def test_log_levels_are_names() -> None:
    wrong: list[tuple[Any, Any]] = [(10, None), ("LOUD", None), ("INFO", "5"), ("INFO", -1)]
    for level, length in wrong:
        with pytest.raises(ConfigError, match=r"log_level|max_log_len"):
            set_up_logging(level, length)
