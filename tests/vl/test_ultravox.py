"""Ultravox: folders that name the models whose weights they lack, sizes of audio, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine.test_audio import make_turn
from family_contract import edit_json, load_family
from reference.ultravox import process
from sounds import make_tone, make_wav
from ultravox_checkpoints import load_ultravox, process_ultravox, refer_to_others, write_ultravox

from seesay import EngineConfig, GenerationConfig, Pipeline
from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.media.decoded import make_decoded_audio
from seesay.values import AudioSamples, MediaSize, Modality

CONFIG = GenerationConfig(max_new_tokens=12, min_new_tokens=12)
PROMPT = [make_turn("see ", make_wav(make_tone(2.37)), " and?")]


def answer(path: Path, **options: Any) -> list[int]:
    with Pipeline(str(path), backend_config=EngineConfig(device_type="cpu", **options)) as pipe:
        found = pipe(PROMPT, gen_config=CONFIG)
    assert found.error is None, found.error
    return list(found.token_ids)


def answer_by_reference(path: Path) -> list[int]:
    inputs = process_ultravox(path, PROMPT)
    output = load_ultravox(path).generate(**inputs, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    ids: list[int] = output[0, inputs["input_ids"].shape[1] :].tolist()
    return ids


def test_weights_of_other_models_are_found(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As published: the folder has the projector alone. What it has itself counts, and so do changes of the others."""
    whole = tiny_checkpoint("ultravox")
    path = refer_to_others(whole, tmp_path)
    assert answer(path) == answer(whole) == answer_by_reference(whole)
    before = Checkpoint.load(path).revision_digest
    weights = tmp_path / "text" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-8:] = bytes(8)
    weights.write_bytes(data)
    assert Checkpoint.load(path).revision_digest != before


def test_norms_behind_the_projector(tmp_path: Path) -> None:
    """As up to version 0.4.1."""
    path = tmp_path / "older"
    write_ultravox(path, norms_inner=False)
    assert answer(path) == answer_by_reference(path)


def test_its_decoder_may_be_quantized(tiny_checkpoint: Callable[[str], Path]) -> None:
    assert len(answer(tiny_checkpoint("ultravox"), quantization="int8")) == 12


@pytest.mark.parametrize(
    ("num_samples", "num_tokens"),
    [(1, 1), (320, 1), (16 * 160, 1), (16 * 160 + 1, 2), (100 * 160, 7), (100 * 160 + 1, 8), (250 * 160, 18)],
)
def test_rows_by_samples(num_samples: int, num_tokens: int, tiny_checkpoint: Callable[[str], Path]) -> None:
    family, _ = load_family(tiny_checkpoint("ultravox"))
    plan = family.plan_media(Modality.AUDIO, MediaSize.of_audio(num_samples, 16000), {})
    assert plan.num_tokens == num_tokens == plan.expansion.takes_embedding.sum()
    assert plan.measures["num_tiles"] == -(-num_samples // 16000)


@pytest.mark.parametrize("num_samples", [1, 161, 320, 16_000, 16_001, 16_161, 40_077])
def test_rows_equal_the_references(num_samples: int, tiny_checkpoint: Callable[[str], Path]) -> None:
    """Also of audio that is shorter than two frames, and of one that ends a frame after a window."""
    path = tiny_checkpoint("ultravox")
    samples = np.random.default_rng(num_samples).normal(0, 0.1, num_samples).astype(np.float32)
    config = json.loads((path / "config.json").read_text())
    turn = {"role": "user", "content": [{"type": "audio"}]}
    inputs = process(path, [turn], [samples], config)
    with torch.inference_mode():
        expected = load_ultravox(path).make_rows(sound0=inputs["sound0"])
    family, _ = load_family(path)
    media = make_decoded_audio(AudioSamples(samples=samples, rate_hz=16000))
    plan = family.plan_media(Modality.AUDIO, media.size, {})
    encoder = family.build_encoder(torch.device("cpu"), torch.float32)
    [found] = encoder.encode([family.preprocess(media, plan.measures)])
    assert found.shape == expected.shape == (plan.num_tokens, 64)
    assert (found - expected).abs().max() < 1e-4 and expected.std() > 0.05


def test_what_config_json_leaves_out_is_as_published(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    def leave_out(config: dict[str, Any]) -> None:
        del config["stack_factor"], config["projector_act"]

    source = tiny_checkpoint("ultravox")
    assert answer(edit_json(source, tmp_path / "less", "config.json", leave_out)) == answer(source)


def test_the_planned_audio_fills_the_tower(tiny_checkpoint: Callable[[str], Path]) -> None:
    family, _ = load_family(tiny_checkpoint("ultravox"))
    largest = family.largest_input()
    assert largest is not None and largest["samples"].shape == (8 * 16000,) and not np.any(largest["samples"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projector_act": "gelu"}, "projector_act must be 'swiglu'"),
        ({"audio_latency_block_size": 100}, "audio_latency_block_size must be 0"),
        ({"llm_only_training": True}, "llm_only_training must be False"),
        ({"audio_config": {"model_type": "wav2vec2"}}, "audio_config.model_type must be 'whisper'"),
        ({"stack_factor": 0}, "stack_factor must be an integer from 1"),
        ({"text_config": None}, "text_config must be an object"),
        ({"text_model_id": 7}, "text_model_id must name a model"),
        ({"text_model_id": "/nowhere/at/all"}, "config.json: text_model_id: model path '/nowhere/at/all': no such"),
    ],
)
def test_what_is_not_supported_is_named(
    changes: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = edit_json(
        tiny_checkpoint("ultravox"), tmp_path / "changed", "config.json", lambda config: config.update(changes)
    )
    with pytest.raises(CheckpointError, match=message):
        load_family(path)


def test_other_models_that_cannot_be_used_are_named(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = refer_to_others(tiny_checkpoint("ultravox"), tmp_path)
    file = tmp_path / "text" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(CheckpointError, match=r"text_model_id: .*text has quantized weights"):
        Checkpoint.load(path)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"text_model_id: .*text has no config\.json"):
        Checkpoint.load(path)
    file.write_text(json.dumps(config))
    (tmp_path / "audio" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"audio.*has no safetensors|no .*safetensors"):
        Checkpoint.load(path)
