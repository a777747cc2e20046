"""Every text backbone against Transformers, on tiny random checkpoints that Transformers wrote."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llm import backbones
from pairs import parametrize_sweep
from safetensors.torch import load_file, save_file

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.model_config import ModelConfig
from seesay.device.linear.linear import Linear
from seesay.errors import CheckpointError
from seesay.llm.memory.kv_cache import KVCache, make_layouts
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.models.decoder import ModelInput
from seesay.llm.ops import RowLayout
from seesay.llm.plans.sampling_params import SamplingParams

TOLERANCE = 1e-4
WIDER = {"qwen3-next": 4e-4, "qwen3.5-moe": 4e-4}
"""Norms of what a delta net gives magnify the error of outputs near zero, and experts more so."""
ALL_LOGITS = SamplingParams(output_logits="all", max_new_tokens=1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], backbones.Backbone]:
    return backbones.make_saver(tmp_path_factory)


@pytest.mark.parametrize("name", backbones.BACKBONES)
def test_logits_and_greedy_tokens_equal_transformers(saved: Any, name: Any) -> None:
    backbone = saved(name)
    prompt = backbones.make_prompt(backbone, 41, seed=3)
    driver = backbones.Driver(backbones.load_runner(backbone))
    _, [logits] = driver.generate([prompt], [ALL_LOGITS])
    expected = backbone.logits(prompt.token_ids, prompt.positions)
    assert expected.std() > 0.3, "a model that says nothing tests nothing"
    torch.testing.assert_close(logits, expected, atol=WIDER.get(name, TOLERANCE), rtol=0)

    plain = backbones.make_prompt(backbone, 23, seed=4)
    if backbone.is_multimodal:
        plain = type(plain)(token_ids=plain.token_ids, positions=np.arange(23), next_position=23)
    [tokens], _ = driver.generate([plain], [SamplingParams(max_new_tokens=32)])
    assert tokens == backbone.greedy(plain.token_ids, 32)


@parametrize_sweep(
    name=(
        "llama-llama3-rope",
        "qwen2-some-windows",
        "qwen3",
        "lfm2",
        "granite-hybrid",
        "falcon-h1",
        "jamba",
        "nemotron-h-moe",
        "deepseek-v2",
        "deepseek-v3",
        "qwen3-next",
        "qwen3.5",
        "mistral-window",
        "qwen2.5-vl",
        "gemma2",
        "gemma3",
        "smollm3",
        "olmo2",
        "cohere",
        "falcon-groups",
        "starcoder2",
        "falcon-alibi",
        "mpt",
    ),
    block_size=(1, 4, 16),
)
def test_chunked_and_batched_equal_whole_and_alone(saved: Any, name: str, block_size: int) -> None:
    backbone = saved(name)
    prompts = [backbones.make_prompt(backbone, length, seed=length) for length in (29, 8, 1, 50)]
    params = [SamplingParams(output_logits="all", max_new_tokens=count) for count in (9, 20, 12, 3)]
    alone = [
        backbones.Driver(backbones.load_runner(backbone, block_size=16)).generate([prompt], [p])
        for prompt, p in zip(prompts, params, strict=True)
    ]
    for chunk in (7, 1 << 30):
        driver = backbones.Driver(backbones.load_runner(backbone, block_size=block_size), chunk=chunk)
        tokens, logits = driver.generate(prompts, params)
        for (expected_tokens, expected_logits), own_tokens, own_logits in zip(alone, tokens, logits, strict=True):
            assert own_tokens == expected_tokens[0]
            torch.testing.assert_close(own_logits, expected_logits[0], atol=WIDER.get(name, TOLERANCE), rtol=0)


def test_longrope_takes_the_long_factors_for_long_texts(saved: Any) -> None:
    backbone = saved("phi3-longrope")
    prompt = backbones.make_prompt(backbone, 90, seed=5)
    _, [logits] = backbones.Driver(backbones.load_runner(backbone), chunk=7).generate([prompt], [ALL_LOGITS])
    expected = backbone.logits(prompt.token_ids, prompt.positions)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)
    short = backbone.logits(prompt.token_ids[:40], prompt.positions[:40])
    assert (short - expected[:40]).abs().max() > 0.1


def test_long_and_short_texts_share_a_batch(saved: Any) -> None:
    backbone = saved("phi3-longrope")
    prompts = [backbones.make_prompt(backbone, length, seed=length) for length in (90, 20)]
    _, logits = backbones.Driver(backbones.load_runner(backbone)).generate(prompts, [ALL_LOGITS] * 2)
    for prompt, own in zip(prompts, logits, strict=True):
        torch.testing.assert_close(own, backbone.logits(prompt.token_ids, prompt.positions), atol=TOLERANCE, rtol=0)


def test_dynamic_rope_is_stretched_for_long_sessions(saved: Any) -> None:
    config = saved("llama-dynamic-rope").text_config
    assert read_decoder_config(config, session_len=256).rotaries[0].length_scaling is None
    scaling = read_decoder_config(config, session_len=512).traits.length_scaling
    assert scaling is not None and (scaling.kind, scaling.trained) == ("dynamic", 256)
    assert scaling.find_stretch(256) == 0.0 < scaling.find_stretch(257) < scaling.find_stretch(512)


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"no_rope_layers": [1, 1, 1, 0]}, "no_rope_layers"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1.0, "factor": 0}}, "factor=0"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 1.0}}}, "'full_attention'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0, "rope_type": "yarn"}}}, "full_attention.rope_type"),
        ({"hidden_act": "relu2"}, "hidden_act='relu2'"),
        ({"num_key_value_heads": 4}, "num_key_value_heads=4"),
        ({"rope_parameters": {"rope_type": "su", "rope_theta": 1.0}}, "'su'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "llama3"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_theta"),
        ({"rope_parameters": {"rope_theta": 1.0, "mrope_section": [1, 1, 1]}}, "mrope_section"),
        (
            {"rope_parameters": {"rope_theta": 1.0, "mrope_section": [1, 1, 3], "mrope_interleaved": True}},
            "interleaved",
        ),
        ({"layer_types": ["linear_attention"] * 3}, "linear_attention"),
        ({"layer_types": ["sliding_attention"] * 3}, "sliding_window"),
        ({"qkv_layout": "mixed"}, "qkv_layout must be one of"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(saved: Any, changes: dict[str, Any], word: str) -> None:
    config = copy.deepcopy(saved("llama").model.config)
    config.__dict__.update(changes)
    with pytest.raises(CheckpointError, match=word):
        read_decoder_config(ModelConfig.of(config))


def change_tensors(backbone: backbones.Backbone, folder: Path, change: Any) -> backbones.Backbone:
    tensors = load_file(backbone.path / "model.safetensors")
    change(tensors)
    save_file({name: t.contiguous().clone() for name, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text((backbone.path / "config.json").read_text())
    return backbones.Backbone(model=backbone.model, path=folder)


@pytest.mark.parametrize(
    "change, word",
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "'model.layers.1.mlp.up_proj.weight' is missing"),
        (lambda t: t.pop("lm_head.weight"), "'lm_head.weight' or 'model.lm_head.weight' is missing"),
        (lambda t: t.update({"model.extra.weight": torch.ones(1)}), "unexpected tensor 'model.extra.weight'$"),
        (lambda t: t.update({"model.norm.weight": torch.ones(3)}), r"'model.norm.weight' has shape \[3\].*\[60\]"),
        (
            lambda t: t.update({"norm.weight": torch.ones(60)}),
            "'model.norm.weight' and 'norm.weight' are the same tensor",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(saved: Any, tmp_path: Path, change: Any, word: str) -> None:
    with pytest.raises(CheckpointError, match=word):
        backbones.load_runner(change_tensors(saved("llama"), tmp_path, change))


def test_what_old_checkpoints_carry_along_is_no_error(saved: Any, tmp_path: Path) -> None:
    def change(tensors: Any) -> None:
        tensors["lm_head.weight"] = torch.zeros(160, 60)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(5)

    tied = saved("qwen2")
    runner = backbones.load_runner(change_tensors(tied, tmp_path, change))
    prompt = backbones.make_prompt(tied, 9, seed=1)
    _, [logits] = backbones.Driver(runner).generate([prompt], [ALL_LOGITS])
    torch.testing.assert_close(logits, tied.logits(prompt.token_ids, prompt.positions), atol=TOLERANCE, rtol=0)


def test_both_layouts_of_a_multimodal_checkpoint_load(saved: Any, tmp_path: Path) -> None:
    backbone = saved("qwen2.5-vl")

    def to_hub_names(tensors: Any) -> None:
        for name in list(tensors):
            tensors[name.replace("model.language_model.", "model.")] = tensors.pop(name)

    moved = change_tensors(backbone, tmp_path, to_hub_names)
    assert "model.layers.0.self_attn.q_proj.weight" in Checkpoint.load(tmp_path).tensor_names()
    prompt = backbones.make_prompt(backbone, 12, seed=1)
    _, [logits] = backbones.Driver(backbones.load_runner(moved)).generate([prompt], [ALL_LOGITS])
    torch.testing.assert_close(logits, backbone.logits(prompt.token_ids, prompt.positions), atol=TOLERANCE, rtol=0)


def test_overrides_reach_the_decoder(saved: Any) -> None:
    backbone = saved("llama")
    checkpoint = Checkpoint.load(backbone.path, {"rope_parameters": {"rope_theta": 500.0}})
    assert json.loads((backbone.path / "config.json").read_text())["rope_parameters"]["rope_theta"] == 10000.0
    frequencies = read_decoder_config(checkpoint.text_config).rotaries[0].inv_freq
    assert frequencies[1] == pytest.approx(500.0 ** (-2 / 10))


@pytest.mark.parametrize("name", ["qwen2-some-windows", "phi3-longrope", "qwen2.5-vl"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_steps_filled_up_give_the_same(saved: Any, name: str, device: str) -> None:
    backbone = saved(name)
    prompts = [backbones.make_prompt(backbone, length, seed=length) for length in (41, 9, 70, 1)]
    for params in (SamplingParams(max_new_tokens=9), SamplingParams(output_logits="all", max_new_tokens=9)):
        expected = backbones.Driver(backbones.load_runner(backbone, device=device)).generate(prompts, [params] * 4)
        for chunk in (7, 1 << 30):
            runner = backbones.load_runner(backbone, device=device, num_blocks=41)  # all of them are used
            runner.warm_up()
            tokens, logits = backbones.Driver(runner, chunk=chunk).generate(prompts, [params] * 4)
            assert tokens == expected[0]
            for own, other in zip(logits, expected[1], strict=True):
                torch.testing.assert_close(own, other, atol=1e-3 if device == "cuda" else TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["llama", "qwen2-some-windows"])
def test_warming_up_tries_all_sizes_of_products_that_steps_have(
    saved: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, seen = saved(name), set()
    multiply = Linear.__call__

    def watch(self: Linear, x: torch.Tensor) -> torch.Tensor:
        seen.add((self.out_features, self.in_features, len(x)))
        return multiply(self, x)

    monkeypatch.setattr(Linear, "__call__", watch)
    runner = backbones.load_runner(backbone)
    runner.warm_up()
    tried = set(seen)
    assert tried
    prompts = [backbones.make_prompt(backbone, length, seed=length) for length in (41, 9, 70, 1)]
    for chunk in (7, 1 << 30):
        backbones.Driver(runner, chunk=chunk).generate(prompts, [SamplingParams(max_new_tokens=9)] * 4)
    assert seen == tried


@pytest.mark.parametrize(
    "name", ["llama-llama3-rope", "qwen2-some-windows", "qwen3", "phi3", "cohere", "falcon-groups"]
)
@pytest.mark.parametrize("wanted", [[8], [8, 12], [3, 0, 12], []])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_wanted_tokens_alone_are_as_among_all(
    saved: Any, name: str, wanted: list[int] | list[Any], device: str
) -> None:
    decoder = backbones.load_runner(saved(name), device=device).decoder
    lens = np.array([9, 4])
    numbers = torch.arange(lens.sum(), device=device)
    inputs = ModelInput(
        input_ids=numbers * 7 % decoder.traits.vocab_size,
        positions=torch.cat([torch.arange(length) for length in lens]).to(device),
        slot_mapping=torch.cat([numbers[:9], numbers[9:] + 3]),
        layout=RowLayout(
            cu_seqlens_q=np.array([0, 9, 13]),
            kv_lens=lens,
            block_table=np.array([[0, 1, 2], [3, 3, 3]]),
            block_size=4,
            num_decode=0,
        ),
        faults=torch.zeros(13, device=device),
    )

    def run(rows: list[int] | None) -> tuple[torch.Tensor, list[torch.Tensor]]:
        layouts = make_layouts(decoder.traits.kv_shapes, block_size=4, dtype=decoder.dtype)
        kv = KVCache(layouts, num_blocks=4, device=decoder.device)
        with torch.inference_mode():
            tokens = None if rows is None else torch.tensor(rows, dtype=torch.int64, device=device)
            return decoder.forward(inputs, kv.layers, tokens), [layer.data for layer in kv.layers]

    everything, cache = run(None)
    some, cache_of_some = run(wanted)
    assert some.shape == (len(wanted), decoder.traits.embedding_size)
    torch.testing.assert_close(some, everything[wanted], atol=1e-5, rtol=1e-5)
    for own, expected in zip(cache_of_some, cache, strict=True):
        torch.testing.assert_close(own, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("name", backbones.BACKBONES)
def test_logits_on_a_gpu_equal_those_on_the_cpu(saved: Any, name: Any) -> None:
    backbone = saved(name)
    prompts = [backbones.make_prompt(backbone, length, seed=length) for length in (41, 9)]
    params = [SamplingParams(output_logits="all", max_new_tokens=6)] * 2
    expected = backbones.Driver(backbones.load_runner(backbone)).generate(prompts, params)
    for chunk in (7, 1 << 30):
        driver = backbones.Driver(backbones.load_runner(backbone, device="cuda"), chunk=chunk)
        tokens, logits = driver.generate(prompts, params)
        assert tokens == expected[0]
        for own, other in zip(logits, expected[1], strict=True):
            torch.testing.assert_close(own, other, atol=1e-3, rtol=0)
