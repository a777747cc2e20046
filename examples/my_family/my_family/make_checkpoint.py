"""Writes a tiny checkpoint of random weights, which says nonsense: `python -m my_family.make_checkpoint FOLDER`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedTokenizerFast

from my_family.my_model import IMAGE_TOKEN
from my_family.tower import Tower

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VISION = {"image_size": 28, "patch_size": 7, "hidden_size": 24, "num_layers": 2, "max_tiles": 4}
TEXT: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


def make_checkpoint(folder: Path, seed: int = 0) -> None:
    """Write config.json, the processor's settings, a tokenizer of bytes with a chat template, and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    text = {**TEXT, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    config = {
        "architectures": ["MyModelForConditionalGeneration"],
        "model_type": "my_model",
        "dtype": "float32",
        "text_config": text,
        "vision_config": VISION,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    settings = {"image_mean": [0.5, 0.45, 0.4], "image_std": [0.3, 0.28, 0.27], "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2))
    torch.manual_seed(seed)
    # OLMo 2 differs from Llama as this family's decoder does: its class has tensors of the same names and shapes.
    decoder = Olmo2ForCausalLM(Olmo2Config(**text))
    image_size, patch_size, size, num_layers, _ = VISION.values()
    tower = Tower(image_size, patch_size, size, num_layers, out_size=TEXT["hidden_size"])
    tensors = {**decoder.state_dict(), **{f"vision.{name}": tensor for name, tensor in tower.state_dict().items()}}
    save_file({name: spread(name, tensor) for name, tensor in tensors.items()}, folder / "model.safetensors")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each byte, and the special tokens of `TEMPLATE`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = {"user_token": "<|user|>", "assistant_token": "<|assistant|>", "system_token": "<|system|>"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", extra_special_tokens={**special, "image_token": IMAGE_TOKEN}
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def spread(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return random values of a tensor's shape that keep the scale of what goes through it: norms are near 1."""
    if tensor.dim() < 2:
        return torch.randn_like(tensor) * 0.2 + float("norm" in name and "bias" not in name)
    return torch.randn_like(tensor) * (1.0 if "embed_tokens" in name else tensor.shape[1] ** -0.5)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    make_checkpoint(parser.parse_args().folder)


if __name__ == "__main__":
    main()
