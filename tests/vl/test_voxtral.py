"""Voxtral: frames and rows of audio of several windows, prompts of transcripts, names of tensors, what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from family_contract import edit_json, load_family
from safetensors.torch import load_file, save_file
from sounds import make_tone, make_wav
from voxtral_checkpoints import make_input, process_transcription

from seesay import EngineConfig, GenerationConfig, Pipeline, load_audio
from seesay.encoders.towers.audio.log_mel import LogMel, MelConfig
from seesay.encoders.towers.audio.whisper import MAX_WINDOWS
from seesay.errors import CheckpointError
from seesay.processors.media.decoded import make_decoded_audio
from seesay.values import AudioSamples, MediaSize, Modality
from seesay.vl.constants import AUDIO_TOKEN

WINDOW = 480_000
CONFIG = GenerationConfig(max_new_tokens=12, min_new_tokens=12)


def make_noise(num_samples: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(num_samples).normal(0, 0.1, num_samples).astype(np.float32)


def load_model(path: Path) -> Any:
    return transformers.VoxtralForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()


def open_pipe(path: Path, **options: Any) -> Pipeline:
    return Pipeline(str(path), backend_config=EngineConfig(device_type="cpu", **options))


@pytest.mark.parametrize("bins", [80, 128])
def test_frames_are_those_of_whispers_extractor(bins: int) -> None:
    samples = np.concatenate([make_tone(7.0), make_noise(WINDOW - 7 * 16000)])
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins)
    expected = extractor(samples, sampling_rate=16000, return_tensors="pt")["input_features"][0].T
    config = MelConfig(num_bins=bins, rate_hz=16000, fft_size=400, hop=160)
    found = LogMel(config, torch.device("cpu"))(torch.from_numpy(samples))
    assert found.shape == (3000, bins) and torch.equal(found, expected)


@pytest.mark.parametrize("num_samples", [1, WINDOW, WINDOW + 1, MAX_WINDOWS * WINDOW + 9])
def test_rows_of_several_windows_equal_the_models(num_samples: int, tiny_checkpoint: Callable[[str], Path]) -> None:
    """Also of more than go through the tower together, and beside another audio."""
    path = tiny_checkpoint("voxtral")
    family, _ = load_family(path)
    encoder = family.build_encoder(torch.device("cpu"), torch.float32)
    model = load_model(path)
    features, expected = [], []
    for samples in (make_noise(num_samples), make_noise(16000)):
        media = make_decoded_audio(AudioSamples(samples=samples, rate_hz=16000))
        plan = family.plan_media(Modality.AUDIO, media.size, {})
        features.append(family.preprocess(media, plan.measures))
        with torch.inference_mode():
            given = make_input(path, [], [samples])["input_features"]
            expected.append(model.get_audio_features(given, return_dict=True).pooler_output)
        assert plan.expansion.takes_embedding.sum() == len(expected[-1]) == 375 * -(-len(samples) // WINDOW)
        assert plan.num_units == len(given) * 1500 and plan.measures["num_tiles"] == len(given)
    for found, wanted in zip(encoder.encode(features), expected, strict=True):
        assert found.shape == wanted.shape and (found - wanted).abs().max() < 1e-4
    assert expected[0].std() > 0.05, "rows that are all alike prove nothing"


@pytest.mark.parametrize("language", [None, "de"])
def test_a_transcript_is_asked_for_as_published(language: str | None, tiny_checkpoint: Callable[[str], Path]) -> None:
    """A raw prompt, in which the tokens of audio may also be written out as mistral-common does."""
    path = tiny_checkpoint("voxtral")
    sound = make_wav(np.concatenate([make_tone(29.0), make_tone(2.5, pitch_hz=700)]))
    inputs = process_transcription(path, sound, language)
    num_prompt = inputs["input_ids"].shape[1]
    with torch.inference_mode():
        expected = load_model(path).generate(**inputs, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    with open_pipe(path) as pipe:
        text = pipe.engine.family.write_transcription(language)
        assert text is not None
        written = text.replace(AUDIO_TOKEN, "[BEGIN_AUDIO]" + "[AUDIO]" * 750)
        for prompt in (text, written):
            answer = pipe((prompt, load_audio(sound)), gen_config=CONFIG, do_preprocess=False)
            assert answer.error is None and list(answer.token_ids) == expected[0, num_prompt:].tolist()
            assert answer.usage is not None and answer.usage.prompt_tokens == num_prompt
            assert answer.media[0].num_tiles == 2 and answer.media[0].audio_s == 31.5


def test_newer_names_of_tensors_are_read(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Those of Transformers' own modules; as published, decoder and head are a model inside of the model."""
    source, path = tiny_checkpoint("voxtral"), tmp_path / "newer"
    shutil.copytree(source, path)
    file = path / "model.safetensors"
    renamed = {}
    for name, tensor in load_file(file).items():
        text = name.removeprefix("language_model.model.")
        inner = f"model.language_model.{text}" if text != name else f"model.{name}"
        renamed["lm_head.weight" if name == "language_model.lm_head.weight" else inner] = tensor
    assert {"lm_head.weight", "model.audio_tower.conv1.weight", "model.language_model.norm.weight"} <= renamed.keys()
    save_file(renamed, file, metadata={"format": "pt"})
    prompt = ("what?", AudioSamples(samples=make_tone(1.0), rate_hz=16000))
    answers = []
    for folder in (source, path):
        with open_pipe(folder) as pipe:
            answers.append(pipe(prompt, gen_config=CONFIG))
    assert answers[0].error is None and answers[0].token_ids == answers[1].token_ids


def test_settings_that_are_left_out_are_those_of_the_class(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def leave_out(settings: dict[str, Any]) -> None:
        for name in ("sampling_rate", "hop_length", "n_fft"):
            del settings[name]

    source = tiny_checkpoint("voxtral")
    path = edit_json(source, tmp_path / "less", "preprocessor_config.json", leave_out)
    family, _ = load_family(path)
    assert family.preprocessing == load_family(source)[0].preprocessing and family.audio_rate_hz == 16000


def test_quantized_it_answers(tiny_checkpoint: Callable[[str], Path]) -> None:
    """Its decoder is one of ours."""
    with open_pipe(tiny_checkpoint("voxtral"), quantization="int8") as pipe:
        answer = pipe(("what?", AudioSamples(samples=make_tone(1.0), rate_hz=16000)), gen_config=CONFIG)
        assert answer.error is None and len(answer.token_ids) == 12


def test_the_planned_audio_is_the_largest_that_goes_through_the_tower_together(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    family, _ = load_family(tiny_checkpoint("voxtral"))
    largest = family.largest_input()
    assert largest is not None and len(largest["samples"]) == MAX_WINDOWS * WINDOW
    size = MediaSize.of_audio(MAX_WINDOWS * WINDOW, 16000)
    assert family.plan_media(Modality.AUDIO, size, {}).num_units == family.num_units(largest)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("preprocessor_config.json", {"feature_size": 80}, "feature_size does not fit the tower"),
        ("preprocessor_config.json", {"hop_length": 320}, "hop_length does not fit the tower"),
        ("preprocessor_config.json", {"n_fft": 0}, "n_fft must be an integer"),
        ("config.json", {"audio_config": {"intermediate_size": 100}}, "intermediate_size=100"),
        ("config.json", {"audio_config": {"max_source_positions": 1502}}, "max_source_positions=1502"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    file: str, changes: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def apply(settings: dict[str, Any]) -> None:
        for name, value in changes.items():
            settings[name] = {**settings[name], **value} if isinstance(value, dict) else value

    path = edit_json(tiny_checkpoint("voxtral"), tmp_path / "changed", file, apply)
    with pytest.raises(CheckpointError, match=message):
        load_family(path)
