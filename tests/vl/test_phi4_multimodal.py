"""Phi-4-multimodal: rows of long audio, the adapter for audio, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from adapter_folders import write_adapter
from family_contract import edit_json, load_family
from sounds import make_tone

from seesay import EngineConfig, GenerationConfig, Pipeline
from seesay.encoders.towers.audio.conformer import FRAME_SAMPLES, HOP, MOST_ROWS, REDUCTION
from seesay.errors import CheckpointError, RequestError
from seesay.processors.media.decoded import make_decoded_audio
from seesay.values import AudioSamples, MediaSize, Modality

CONFIG = GenerationConfig(max_new_tokens=12, min_new_tokens=12)
SOUND = AudioSamples(samples=make_tone(1.3), rate_hz=16000)
MOST_SAMPLES = (MOST_ROWS * REDUCTION - 1) * HOP + FRAME_SAMPLES
"""As long as an audio may be whose rows all attend to each other."""


@pytest.mark.parametrize(
    "num_samples", [FRAME_SAMPLES, 20_000, MOST_SAMPLES, MOST_SAMPLES + HOP, 2 * MOST_SAMPLES + 5000]
)
def test_rows_equal_the_models(num_samples: int, tiny_checkpoint: Callable[[str], Path]) -> None:
    """Also of pieces of a longer audio, the last of which is filled up."""
    path = tiny_checkpoint("phi4_multimodal")
    samples = np.random.default_rng(num_samples).normal(0, 0.1, num_samples).astype(np.float32)
    model = transformers.Phi4MultimodalForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    extractor = transformers.Phi4MultimodalFeatureExtractor(feature_size=20)
    made = extractor(samples, sampling_rate=16000, return_tensors="pt")
    tower = model.model.embed_tokens_extend.audio_embed
    with torch.inference_mode():
        hidden = tower.encoder(made["audio_input_features"], None)
        up, down = tower.up_proj_for_speech, tower.down_proj_for_speech
        expected = down(torch.nn.functional.gelu(up(hidden)))[0, : made["audio_embed_sizes"][0]]
    family, _ = load_family(path)
    media = make_decoded_audio(AudioSamples(samples=samples, rate_hz=16000))
    plan = family.plan_media(Modality.AUDIO, media.size, {})
    encoder = family.build_encoder(torch.device("cpu"), torch.float32)
    [found] = encoder.encode([family.preprocess(media, plan.measures)])
    assert found.shape == expected.shape == (plan.num_tokens, 64)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max() and expected.std() > 0.05


def test_requests_with_audio_take_the_adapter_for_it(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Once it is loaded, under its name; texts do not, and neither do requests that name another one."""
    path = tiny_checkpoint("phi4_multimodal")
    modules = r"model\.layers\.\d+\.(self_attn\.(qkv|o)_proj|mlp\.(gate_up|down)_proj)"
    speech = write_adapter(path, tmp_path / "speech-lora", modules, merged=tmp_path / "merged")
    other = write_adapter(path, tmp_path / "other", modules, seed=1)
    with Pipeline(str(tmp_path / "merged"), backend_config=EngineConfig(device_type="cpu")) as pipe:
        merged = pipe(("what?", SOUND), gen_config=CONFIG)
    with Pipeline(str(path), backend_config=EngineConfig(device_type="cpu")) as pipe:
        plain, text = pipe([("what?", SOUND), "the game"], gen_config=CONFIG)
    adapters = {"speech": str(speech), "other": str(other)}
    with Pipeline(str(path), backend_config=EngineConfig(device_type="cpu", adapters=adapters)) as pipe:
        answers = pipe([("what?", SOUND), "the game"], gen_config=CONFIG)
        named, changed = pipe([("what?", SOUND)] * 2, gen_config=CONFIG, adapter_name=["speech", "other"])
    assert merged.error is None and merged.token_ids != plain.token_ids
    assert answers[0].token_ids == merged.token_ids == named.token_ids and answers[1].token_ids == text.token_ids
    assert changed.token_ids not in (merged.token_ids, plain.token_ids)


def test_the_long_scaling_of_positions_is_that_of_each_text(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """As published: LongRoPE."""
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "short_factor": [1.0] * 4,
        "long_factor": [2.0, 3.0, 4.0, 5.0], "original_max_position_embeddings": 40,
    }  # fmt: skip
    changes = {"rope_parameters": rope, "original_max_position_embeddings": 40}
    source = tiny_checkpoint("phi4_multimodal")
    path = edit_json(source, tmp_path / "long", "config.json", lambda config: config.update(changes))
    text = "the game is in the frame " * 4
    model = transformers.Phi4MultimodalForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with Pipeline(str(path), backend_config=EngineConfig(device_type="cpu")) as pipe:
        answer = pipe(text, gen_config=GenerationConfig(max_new_tokens=1, output_logits="all"), do_preprocess=False)
        ids = pipe.engine.tokenizer.encode(text)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    assert len(ids) > 40 and (answer.logits[: len(ids)] - expected).abs().max() < 1e-4


def test_a_minute_is_planned(tiny_checkpoint: Callable[[str], Path]) -> None:
    family, _ = load_family(tiny_checkpoint("phi4_multimodal"))
    largest = family.largest_input()
    assert largest is not None and largest["samples"].shape == (60 * 16000,) and largest["num_tiles"] == 1
    plan = family.plan_media(Modality.AUDIO, MediaSize.of_audio(60 * 16000, 16000), {})
    assert plan.num_units == plan.num_tokens == family.num_units(largest) == 750


def test_audio_that_is_too_short_is_refused(tiny_checkpoint: Callable[[str], Path]) -> None:
    family, _ = load_family(tiny_checkpoint("phi4_multimodal"))
    with pytest.raises(RequestError, match=r"audio of 0.025 s is too short .* 0.025 s or more"):
        family.plan_media(Modality.AUDIO, MediaSize.of_audio(FRAME_SAMPLES - 1, 16000), {})


def test_pictures_are_refused(tiny_checkpoint: Callable[[str], Path]) -> None:
    with Pipeline(str(tiny_checkpoint("phi4_multimodal")), backend_config=EngineConfig(device_type="cpu")) as pipe:
        answer = pipe(("what?", np.zeros((8, 8, 3), np.uint8)), gen_config=CONFIG)
        assert "takes no image input" in str(answer.error)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"audio_config": {"chunk_size": 18}}, "audio_config.chunk_size must be -1, got 18"),
        ("config.json", {"audio_config": {"input_size": 80}}, "audio_config.input_size must be 20, got 80"),
        ("config.json", {"audio_config": {"ext_pw_out_channel": 64}}, "ext_pw_out_channel and .* must be 32"),
        ("processor_config.json", {"audio_processor": {"n_fft": 400}}, "processor setting n_fft must be 512, got 400"),
    ],
)
def test_settings_that_are_not_supported_are_named(
    file: str, changes: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def apply(settings: dict[str, Any]) -> None:
        for name, value in changes.items():
            settings[name] = {**settings[name], **value}

    path = edit_json(tiny_checkpoint("phi4_multimodal"), tmp_path / "changed", file, apply)
    with pytest.raises(CheckpointError, match=message):
        load_family(path)
