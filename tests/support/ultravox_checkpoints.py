"""The tiny Ultravox, with all weights in one folder, or with those of two others that its config.json names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from reference.ultravox import MARKER, Ultravox, process
from safetensors.torch import load_file, save_file

from seesay import load_audio

_WEIGHTS = "model.safetensors"
_ENCODER, _DECODER = "audio_tower.", "language_model."


def write_ultravox(path: Path, *, norms_inner: bool = True) -> None:
    """Windows of a second, of 50 rows, of which the last six of the last row are zeros."""
    from vl.checkpoints import BOS_CHATML, QWEN_TEXT, make_tokenizer, spread_weights

    tokenizer = make_tokenizer(BOS_CHATML.replace("@audio@", MARKER), has_bos=True)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    audio = {
        "model_type": "whisper", "_name_or_path": "openai/whisper-tiny", "d_model": 32, "encoder_layers": 2,
        "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "num_mel_bins": 16, "max_source_positions": 50,
    }  # fmt: skip
    text = {"model_type": "llama", "vocab_size": 288, **QWEN_TEXT, "tie_word_embeddings": False, **ids}
    config = {
        "architectures": ["UltravoxModel"], "model_type": "ultravox", "audio_config": audio, "text_config": text,
        "auto_map": {"AutoModel": "ultravox_model.UltravoxModel"}, "stack_factor": 8, "hidden_size": 40,
        "projector_act": "swiglu", "projector_ln_mid": norms_inner, "norm_init": 0.4, "ignore_index": -100,
        "audio_model_id": None, "text_model_id": None, "audio_latency_block_size": None, "torch_dtype": "float32",
    }  # fmt: skip
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    model = Ultravox(config)
    spread_weights(model)
    model.save(path)
    tokenizer.save_pretrained(path)


def refer_to_others(whole: Path, path: Path) -> Path:
    """Write the same model as it is published: the folder has a projector, and names those of encoder and decoder."""
    weights, config = load_file(whole / _WEIGHTS), json.loads((whole / "config.json").read_text())
    own = path / "own"
    for key, prefix, inner in (("text", _DECODER, ""), ("audio", _ENCODER, "model.encoder.")):
        folder = path / key
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config.pop(f"{key}_config")))
        names = [name for name in weights if name.startswith(prefix)]
        tensors = {inner + name.removeprefix(prefix): weights.pop(name) for name in names}
        save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
        config[f"{key}_model_id"] = str(folder)
    assert weights and all(name.startswith("multi_modal_projector.") for name in weights)
    own.mkdir()
    (own / "config.json").write_text(json.dumps(config))
    save_file(weights, own / _WEIGHTS, metadata={"format": "pt"})
    transformers.PreTrainedTokenizerFast.from_pretrained(whole).save_pretrained(own)
    return own


def load_ultravox(path: Path) -> Any:
    return Ultravox.load(path)


def process_ultravox(path: Path, messages: Sequence[dict[str, Any]]) -> Any:
    sounds = [part["audio"] for message in messages for part in message["content"] if part["type"] == "audio"]
    config = json.loads((path / "config.json").read_text())
    return process(path, messages, [load_audio(sound).samples for sound in sounds], config)
