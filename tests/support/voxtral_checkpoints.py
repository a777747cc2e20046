"""The tiny Voxtral, in the files that Mistral publishes, and its prompts: the ids that mistral-common 1.13.1 makes of
such conversations and transcripts with this tekken.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from tekken_files import LATER, NUM_SPECIAL, TOKENS, encode_by_rule, write_tekken
from transformers.models.voxtral.processing_voxtral import VoxtralProcessor

from seesay import load_audio

SPECIAL = (*LATER, "[AUDIO]", "[BEGIN_AUDIO]", "[TRANSCRIBE]")
_IDS = {text: id_ for id_, text in enumerate(SPECIAL)}
_MEL: dict[str, Any] = {"feature_size": 16, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 30}
_FILE = "preprocessor_config.json"
_WINDOW, _ROWS = 480_000, 375
"""Samples of a window, and what it becomes."""


def write_voxtral(path: Path) -> None:
    """Four rows of 32 values become one, of 64, in a decoder with heads of another size."""
    from vl.checkpoints import QWEN_TEXT, save_model

    config = transformers.VoxtralConfig(
        audio_config={
            "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_mel_bins": _MEL["feature_size"],
        },
        text_config={
            "model_type": "llama", **QWEN_TEXT, "vocab_size": NUM_SPECIAL + len(TOKENS), "head_dim": 24,
            "max_position_embeddings": 4096, "bos_token_id": _IDS["<s>"], "eos_token_id": _IDS["</s>"],
            "pad_token_id": _IDS["<pad>"],
        },
        audio_token_id=_IDS["[AUDIO]"],
    )  # fmt: skip
    save_model(transformers.VoxtralForConditionalGeneration(config), path)
    transformers.WhisperFeatureExtractor(**_MEL).save_pretrained(path)
    listed = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(SPECIAL)]
    write_tekken(path, "v7", special_tokens=listed)


def process_conversation(path: Path, messages: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """Return the input of Transformers' model, as its processor makes it with mistral-common."""
    ids, sounds = [_IDS["<s>"]], []
    for message in messages:
        is_user = message["role"] == "user"
        ids += [_IDS["[INST]"]] if is_user else []
        for part in message["content"]:
            if part["type"] == "text":
                ids += encode_by_rule(part["text"])
            else:
                sounds.append(load_audio(part["audio"]).samples)
                ids += place_sound(len(sounds[-1]))
        ids += [_IDS["[/INST]"]] if is_user else [_IDS["</s>"]]
    return make_input(path, ids, sounds)


def process_transcription(path: Path, sound: bytes, language: str | None) -> dict[str, torch.Tensor]:
    """Return the input for a transcript."""
    samples = load_audio(sound).samples
    spoken = [] if language is None else encode_by_rule(f"lang:{language}")
    ids = [_IDS["<s>"], _IDS["[INST]"], *place_sound(len(samples)), _IDS["[/INST]"], *spoken, _IDS["[TRANSCRIBE]"]]
    return make_input(path, ids, [samples])


def place_sound(num_samples: int) -> list[int]:
    return [_IDS["[BEGIN_AUDIO]"], *[_IDS["[AUDIO]"]] * (-(-num_samples // _WINDOW) * _ROWS)]


def make_input(path: Path, ids: Sequence[int], sounds: Sequence[npt.NDArray[np.float32]]) -> dict[str, torch.Tensor]:
    found = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if not sounds:
        return found
    processor = VoxtralProcessor.__new__(VoxtralProcessor)  # its tokenizer needs mistral-common
    processor.feature_extractor = transformers.WhisperFeatureExtractor(**json.loads((path / _FILE).read_text()))
    options = dict(VoxtralProcessor.audio_kwargs)
    frames = options.pop("max_source_positions")
    return {**found, "input_features": processor._retrieve_input_features(sounds, frames, **options)}
