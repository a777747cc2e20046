"""Texts beyond the trained length: frequencies and logits are those of Transformers. Dynamic scaling follows the length
of each prompt, LongRoPE that of the text so far."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from asking import collect
from llm import backbones
from llm.eager_graphs import record_eagerly
from original_text import as_qwen
from safetensors.torch import load_file, save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.model_config import ModelConfig
from seesay.config import EngineConfig, GenerationConfig, TurbomindEngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, ConfigError
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.models.configs.rope_parameters import find_covered_length
from seesay.llm.models.mixers.rotary import Rotary
from seesay.llm.models.spec import RotarySpec
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import GenerationRequest

TRAINED, LENGTH = 64, 90
ALL_LOGITS = SamplingParams(output_logits="all", max_new_tokens=1)
FREQUENCIES: dict[str, dict[str, Any]] = {
    "linear": backbones.LINEAR,
    "dynamic": backbones.DYNAMIC,
    "dynamic-part": backbones.DYNAMIC | {"partial_rotary_factor": 0.8},
    "llama3": backbones.LLAMA3,
    "yarn": backbones.YARN,
    "yarn-part": backbones.YARN | {"partial_rotary_factor": 0.8, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    "yarn-attention": backbones.YARN | {"attention_factor": 1.3},
    "yarn-mscale": backbones.YARN | {"mscale": 0.7, "mscale_all_dim": 0.4},
    "longrope": backbones.LONGROPE,
    "longrope-factor": backbones.LONGROPE | {"attention_factor": 1.1},
}


@pytest.mark.parametrize("name", FREQUENCIES)
def test_frequencies_are_those_of_transformers(name: str) -> None:
    parameters = FREQUENCIES[name]
    kind = transformers.Phi3Config if "longrope" in name else transformers.GlmConfig
    sizes = backbones.SIZES | {"max_position_embeddings": TRAINED}
    sizes |= {"original_max_position_embeddings": TRAINED} if "longrope" in name else {"head_dim": 20}
    config = kind(**sizes, rope_parameters=dict(parameters))
    [rotary] = read_decoder_config(ModelConfig.of(config), session_len=LENGTH).rotaries
    make = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    for length in (None, TRAINED, TRAINED + 1, LENGTH):
        expected, scale = make(config, torch.device("cpu"), seq_len=length)
        assert len(rotary.inv_freq) * 2 == rotary.dim and rotary.scale == pytest.approx(scale)
        own = find_frequencies(rotary, length or 1)
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=0)
    is_by_length = parameters["rope_type"] in ("dynamic", "longrope")
    assert (rotary.length_scaling is not None) is is_by_length
    if is_by_length:
        assert not torch.equal(find_frequencies(rotary, TRAINED + 1), find_frequencies(rotary, TRAINED))


def find_frequencies(spec: RotarySpec, length: int) -> torch.Tensor:
    """float32 [dim / 2]: the angles of a token at position 1 of a sequence of this length."""
    rotary = Rotary(replace(spec, scale=1.0), device=torch.device("cpu"), dtype=torch.float64)
    stretch = 0.0 if spec.length_scaling is None else spec.length_scaling.find_stretch(length)
    cos, sin = rotary.tables(torch.tensor([1]), torch.tensor([stretch], dtype=torch.float64))
    angles = torch.atan2(-sin, cos)[0, 0, : spec.dim // 2]
    assert bool((angles > 0).all())
    return angles.float()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return backbones.make_saver(tmp_path_factory, max_position_embeddings=TRAINED)


@pytest.mark.parametrize("name", ["llama-linear-rope", "llama-dynamic-rope", "llama-llama3-rope", "qwen2-yarn"])
def test_logits_beyond_the_trained_length_are_those_of_transformers(saved: Any, name: str) -> None:
    backbone = saved(name)
    prompt = backbones.make_prompt(backbone, LENGTH, seed=3)
    expected = backbone.logits(prompt.token_ids, prompt.positions)
    for chunk in (7, 1 << 30):
        driver = backbones.Driver(backbones.load_runner(backbone, session_len=4 * LENGTH), chunk=chunk)
        _, [logits] = driver.generate([prompt], [ALL_LOGITS])
        torch.testing.assert_close(logits, expected, atol=2e-3, rtol=0)


def test_each_prompt_of_a_step_is_stretched_by_its_own_length(saved: Any) -> None:
    backbone = saved("llama-dynamic-rope")
    prompts = [backbones.make_prompt(backbone, length, seed=length) for length in (LENGTH, 30, 70, 3 * TRAINED)]
    runner = backbones.load_runner(backbone, session_len=8 * TRAINED)
    _, found = backbones.Driver(runner, chunk=29).generate(prompts, [ALL_LOGITS] * 4)
    for prompt, logits in zip(prompts, found, strict=True):
        # A new model for each, as Transformers keeps the frequencies of the longest text so far.
        fresh = transformers.AutoModelForCausalLM.from_pretrained(backbone.path).eval()
        expected = replace(backbone, model=fresh).logits(prompt.token_ids, prompt.positions)
        torch.testing.assert_close(logits, expected, atol=2e-3, rtol=0)


def test_a_scaling_factor_is_dynamic_scaling_in_place_of_the_checkpoints(saved: Any) -> None:
    backbone = saved("llama-linear-rope")
    prompts = [backbones.make_prompt(backbone, length, seed=length) for length in (LENGTH, 30)]
    config = transformers.AutoConfig.from_pretrained(backbone.path)
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}
    model = transformers.AutoModelForCausalLM.from_pretrained(backbone.path, config=config).eval()
    scaled = backbones.Backbone(model=model, path=backbone.path)
    driver = backbones.Driver(backbones.load_runner(backbone, session_len=LENGTH, rope_scaling_factor=3.0))
    _, found = driver.generate(prompts, [ALL_LOGITS] * 2)
    for prompt, logits in reversed(list(zip(prompts, found, strict=True))):  # Transformers keeps what it stretched once
        torch.testing.assert_close(logits, scaled.logits(prompt.token_ids, prompt.positions), atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen2.5-vl"])
def test_queries_beyond_the_trained_length_are_scaled_by_their_logarithm(saved: Any, name: str) -> None:
    """Transformers' model, with the queries of each place multiplied before they are rotated."""
    backbone = saved(name)
    prompt = backbones.make_prompt(backbone, LENGTH, seed=4)
    places = torch.tensor(prompt.positions if prompt.positions.ndim == 1 else prompt.positions.max(0)) + 1
    scale = (places.float().log() / math.log(TRAINED)).clamp(min=1.0)
    plain = backbone.logits(prompt.token_ids, prompt.positions)
    norms = [m for path, m in backbone.model.named_modules() if path.endswith("self_attn.q_norm")]
    for module in norms or [m for path, m in backbone.model.named_modules() if path.endswith("self_attn.q_proj")]:
        module.register_forward_hook(lambda _, __, queries: queries * scale.view(1, -1, *([1] * (queries.dim() - 2))))
    expected = backbone.logits(prompt.token_ids, prompt.positions)
    assert (plain - expected).abs().max() > 0.01 and torch.equal(plain[: TRAINED // 2], expected[: TRAINED // 2])
    for chunk in (7, 1 << 30):
        runner = backbones.load_runner(backbone, session_len=LENGTH, use_logn_attn=True)
        _, [logits] = backbones.Driver(runner, chunk=chunk).generate([prompt], [ALL_LOGITS])
        torch.testing.assert_close(logits, expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("length", "alpha"), [(TRAINED + 1, 3), (2 * TRAINED, 3), (2 * TRAINED + 1, 7), (4 * TRAINED, 7), (300, 15)]
)
def test_the_first_qwen_stretches_by_powers_of_two(length: int, alpha: int, many_keys: Any, tmp_path: Path) -> None:
    """Transformers' Qwen2 with the frequencies of the published code (`get_ntk_alpha` of Qwen-7B-Chat's
    modeling_qwen.py, which takes the length of the prompt), and with queries multiplied."""
    backbone = many_keys
    path = publish_qwen_of(backbone, tmp_path)
    prompts = [backbones.make_prompt(backbone, each, seed=each) for each in (length, TRAINED)]
    driver = backbones.Driver(backbones.load_runner(replace(backbone, path=path), session_len=16 * TRAINED), chunk=29)
    _, [found, short] = driver.generate(prompts, [ALL_LOGITS] * 2)
    torch.testing.assert_close(short, backbone.logits(prompts[1].token_ids, prompts[1].positions), atol=2e-3, rtol=0)
    model = copy.deepcopy(backbone.model)
    rotary, dim = model.model.rotary_emb, 10
    base = 10000.0 * alpha ** (dim / (dim - 2))
    rotary.inv_freq.copy_(1.0 / base ** (torch.arange(0, dim, 2) / dim))
    scale = (torch.arange(1, length + 1).log() / math.log(TRAINED)).clamp(min=1.0)
    for layer in model.model.layers:
        layer.self_attn.q_proj.register_forward_hook(lambda _, __, queries: queries * scale[:, None])
    expected = replace(backbone, model=model).logits(prompts[0].token_ids, prompts[0].positions)
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
    assert (found - backbone.logits(prompts[0].token_ids, prompts[0].positions)).abs().max() > 0.01


@pytest.fixture(scope="module")
def many_keys(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A Qwen2 with as many keys as queries."""
    sizes = {"num_key_value_heads": 6, "tie_word_embeddings": False, "max_position_embeddings": TRAINED}
    return backbones.make_backbone("qwen2", tmp_path_factory.mktemp("many_keys"), **sizes)


def publish_qwen_of(backbone: Any, folder: Path) -> Path:
    """Write a Qwen2 in the layout of the first Qwen, which was trained for so many positions."""
    tiny = json.loads((backbone.path / "config.json").read_text())
    config, tensors = as_qwen(tiny, load_file(backbone.path / "model.safetensors"))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config |= {"seq_length": TRAINED, "max_position_embeddings": 4 * TRAINED}
    (folder / "config.json").write_text(json.dumps(config))
    assert find_covered_length(Checkpoint.load(folder).text_config) > 4 * TRAINED
    return folder


def test_the_first_qwen_needs_heads_that_can_be_stretched(many_keys: Any, tmp_path: Path) -> None:
    """And takes the factor that a user asks for instead."""
    checkpoint = Checkpoint.load(publish_qwen_of(many_keys, tmp_path))
    [rotary] = read_decoder_config(checkpoint.text_config, session_len=90, rope_scaling_factor=2.0).rotaries
    stretch = 2.0 * 90 / TRAINED - 1
    last = 1.0 / (10000.0 * stretch ** (10 / 8)) ** 0.8
    assert find_frequencies(rotary, 90)[-1].item() == pytest.approx(last)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_attention_heads": 30, "kv_channels": 2}))
    with pytest.raises(CheckpointError, match="use_dynamic_ntk needs heads of more than 2 components, got 2"):
        read_decoder_config(Checkpoint.load(tmp_path).text_config, session_len=90)


@pytest.mark.parametrize("options", [{"rope_scaling_factor": 8.0}, {"use_logn_attn": True}])
def test_decode_steps_compute_the_same_on_the_path_of_graphs(saved: Any, options: dict[str, Any]) -> None:
    backbone = saved("llama")
    prompts = [backbones.make_prompt(backbone, length, seed=length) for length in (70, 81)]
    params = [SamplingParams(max_new_tokens=12)] * 2
    found = {}
    for name, own, takes_graphs in (("plain", {}, False), ("steps", options, False), ("graphs", options, True)):
        runner = backbones.load_runner(backbone, session_len=128, **own)
        sizes = record_eagerly(runner) if takes_graphs else []
        found[name], _ = backbones.Driver(runner).generate(prompts, params)
        assert len(sizes) == 11 * takes_graphs
    assert found["graphs"] == found["steps"] != found["plain"]


def test_rows_of_several_stretches_decode_together_on_the_path_of_graphs(saved: Any) -> None:
    """And each as it does alone."""
    backbone = saved("llama-dynamic-rope")
    prompts = [backbones.make_prompt(backbone, length, seed=length) for length in (70, 20, 140, 81)]
    params = [SamplingParams(max_new_tokens=12)] * 4
    runner = backbones.load_runner(backbone, session_len=256)
    alone = [backbones.Driver(runner).generate([prompt], params[:1])[0][0] for prompt in prompts]
    sizes = record_eagerly(runner)
    together, _ = backbones.Driver(runner).generate(prompts, params)
    assert together == alone and len(sizes) == 11


def test_a_configuration_may_ask_for_logn_attention(saved: Any) -> None:
    config = transformers.AutoConfig.from_pretrained(saved("llama-linear-rope").path)
    assert read_decoder_config(ModelConfig.of(config)).log_length is None
    config.use_logn_attn = True
    assert read_decoder_config(ModelConfig.of(config)).log_length == TRAINED
    config.max_position_embeddings = 1
    with pytest.raises(CheckpointError, match="use_logn_attn needs a trained length of at least 2 positions, got 1"):
        read_decoder_config(ModelConfig.of(config))


def test_layers_of_several_kinds_have_no_common_factor(saved: Any) -> None:
    with pytest.raises(CheckpointError, match=r"rope_scaling_factor=2\.0 needs one rotary embedding for all layers"):
        read_decoder_config(saved("gemma3").text_config, session_len=LENGTH, rope_scaling_factor=2.0)


@pytest.mark.parametrize("factor", [None, True, "2", 0.5, 0, 1e300])
def test_wrong_factors_are_named(saved: Any, factor: Any) -> None:
    config = transformers.AutoConfig.from_pretrained(saved("llama-dynamic-rope").path)
    config.rope_parameters["factor"] = factor
    with pytest.raises(CheckpointError, match=r"rope_parameters\.factor="):
        read_decoder_config(ModelConfig.of(config), session_len=LENGTH)


# --- the whole engine -------------------------------------------------------------------------------------------------

CONFIG = EngineConfig(device_type="cpu", block_size=8, max_batch_size=4, max_prefill_token_num=16)
SMALL = {"max_position_embeddings": 48}


class Answer(NamedTuple):
    token_ids: list[int]
    logprobs: Any  # floats, or what compares them

    def behind(self, num_tokens: int, count: int) -> Answer:
        """Some tokens behind the first ones; log-probabilities are equal if they are nearly so."""
        part = slice(num_tokens, num_tokens + count)
        return Answer(self.token_ids[part], pytest.approx(self.logprobs[part], abs=1e-3))


def ask(engine: AsyncEngine, *prompts: tuple[int, ...], num_new: int) -> list[Answer]:
    config = GenerationConfig(max_new_tokens=num_new, ignore_eos=True, logprobs=1)
    requests = [GenerationRequest(prompt=prompt, gen_config=config) for prompt in prompts]
    answers = []
    for deltas in collect(engine, requests):
        token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        entries = [entry for delta in deltas for entry in delta.logprobs or ()]
        answers.append(Answer(token_ids, [entry[i] for i, entry in zip(token_ids, entries, strict=True)]))
    return answers


def test_queries_of_a_text_that_grows_are_scaled_like_those_of_one_that_begins_there(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    path = str(tiny_checkpoint("qwen2"))
    long, short = tuple(5 + k * 7 % 90 for k in range(40)), tuple(9 + k * 5 % 80 for k in range(12))
    plain = replace(CONFIG, hf_overrides=SMALL, session_len=96)
    with AsyncEngine(path, backend_config=plain) as engine:
        [plain_short] = ask(engine, short, num_new=20)
        [plain_long] = ask(engine, (*long, *long[:20]), num_new=20)
    with AsyncEngine(path, backend_config=replace(plain, use_logn_attn=True)) as engine:
        grown, beside = ask(engine, long, short, num_new=40)
        assert beside.behind(0, 20) == plain_short, "texts within the trained length are computed as without the option"
        for done in (12, 25):  # 52 and 65 tokens: the prompt is beyond it
            for _ in range(2):  # the second time from the prefix cache
                assert ask(engine, (*long, *grown.token_ids[:done]), num_new=10) == [grown.behind(done, 10)]
        [scaled_long] = ask(engine, (*long, *long[:20]), num_new=20)
    assert scaled_long != plain_long.behind(0, 20), "the option changes something"


@pytest.mark.parametrize("num_blocks", [None, 20])
def test_the_prompt_decides_how_an_answer_is_stretched(
    tiny_checkpoint: Callable[[str], Path], num_blocks: int | None
) -> None:
    """Prompts of several lengths beside each other, each the beginning of the longer ones, preempted where blocks are
    few, and from the prefix cache."""
    path = str(tiny_checkpoint("qwen2"))
    longest = tuple(random.Random(7).choices(range(5, 95), k=70))
    prompts = [longest[:length] for length in (40, 12, 60, 70)]
    plain = replace(CONFIG, hf_overrides=SMALL, session_len=120)
    with AsyncEngine(path, backend_config=plain) as engine:
        unscaled = [ask(engine, prompt, num_new=30)[0] for prompt in prompts]
    scaled = replace(plain, rope_scaling_factor=4.0)
    with AsyncEngine(path, backend_config=replace(scaled, enable_prefix_caching=False)) as engine:
        alone = [ask(engine, prompt, num_new=30)[0] for prompt in prompts]
    for index, (prompt, own) in enumerate(zip(prompts, alone, strict=True)):
        is_long = len(prompt) > SMALL["max_position_embeddings"]
        assert (own != unscaled[index].behind(0, 30)) is is_long, (
            "48 tokens are not scaled, nor an answer that began there"
        )
    limits: dict[str, Any] = {} if num_blocks is None else {"num_gpu_blocks": num_blocks}
    with AsyncEngine(path, backend_config=replace(scaled, **limits)) as engine:
        for _ in range(2):
            assert ask(engine, *prompts, num_new=30) == [own.behind(0, 30) for own in alone]
        if num_blocks is not None:
            assert engine.stats().total_preemptions > 0


def test_options_are_checked_and_translated() -> None:
    for factor in (-1.0, 0.5, 2000.0):
        with pytest.raises(ConfigError, match=r"rope_scaling_factor must be 0 \(off\) or in \[1, 1024\]"):
            EngineConfig(rope_scaling_factor=factor)
    config = TurbomindEngineConfig(rope_scaling_factor=2.0, use_logn_attn=True).to_engine_config()
    assert (config.rope_scaling_factor, config.use_logn_attn) == (2.0, True)
