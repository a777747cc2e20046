"""Everything in the checkpoint's folder but the weights: tokenizer, chat template, and the processors' settings."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from demo_training import packing as pk
from demo_training.network import IMAGE_MEAN, IMAGE_STD
from seesay.demo.example import IMAGE_PIXELS
from seesay.demo.scenes import TRAINING_TASKS, make_example, training_seed
from seesay.demo.vocabulary import WORDS
from seesay.templates.builtin import find_file

VOCABULARY = 1024
SPECIAL_TOKENS = (
    "endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end", "quad_start",
    "quad_end", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad",
)  # fmt: skip
"""Names without brackets, in Qwen2.5-VL's order; they take the last ids of the vocabulary."""

# Qwen2's split: contractions, words with a leading blank, single digits, punctuation, line ends, blanks.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer() -> Tokenizer:
    """A byte-level BPE learned from conversations in the old wordings, without the words to be read: those are spelled.

    It stays the same while the grammar of wordings grows, so that a checkpoint's weights can be trained further.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    lines = [pk.SYSTEM_PROMPT, *pk.OTHER_SYSTEM_PROMPTS, "system\nuser\nassistant\n"]
    lines += ["It says the word. It says the number."] * 99
    lines += random.Random(0).sample(WORDS, 60)
    for task in TRAINING_TASKS:
        if task != "spell":
            for index in range(1500):
                lines += [text for turn in make_example(task, training_seed(index)).turns for text in turn]
    tokenizer.train_from_iterator((line for line in lines if '"' not in line), trainer)
    tokenizer.add_special_tokens([AddedToken(f"<|{name}|>", special=True, normalized=False) for name in SPECIAL_TOKENS])
    missing = VOCABULARY - tokenizer.get_vocab_size()
    if missing:
        raise ValueError(f"the corpus is {missing} merges short of the vocabulary")
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Ids of the special tokens by their names without brackets."""
    vocabulary = tokenizer.get_vocab()
    return {name: vocabulary[f"<|{name}|>"] for name in SPECIAL_TOKENS}


def write_processing_files(folder: Path, tokenizer: Tokenizer) -> None:
    """Tokenizer, chat template, generation defaults, image and video processor settings."""
    ids = special_ids(tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = find_file("qwen-tools")
    assert template is not None
    shutil.copyfile(template, folder / "chat_template.jinja")
    pixels: dict[str, Any] = {
        "patch_size": pk.PATCH_PX,
        "temporal_patch_size": pk.TEMPORAL_PATCH,
        "merge_size": pk.MERGE,
        "image_mean": IMAGE_MEAN,
        "image_std": IMAGE_STD,
        "processor_class": "Qwen2_5_VLProcessor",
    }

    def limits(fewest_and_most: tuple[int, int]) -> dict[str, Any]:
        fewest, most = fewest_and_most
        return {"min_pixels": fewest, "max_pixels": most, "size": {"shortest_edge": fewest, "longest_edge": most}}

    files: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "processor_class": "Qwen2_5_VLProcessor",
            "added_tokens_decoder": {
                str(ids[name]): {
                    "content": f"<|{name}|>",
                    "lstrip": False,
                    "normalized": False,
                    "rstrip": False,
                    "single_word": False,
                    "special": True,
                }
                for name in SPECIAL_TOKENS
            },
            "additional_special_tokens": [f"<|{name}|>" for name in SPECIAL_TOKENS[1:]],
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": None,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": False,
            "errors": "replace",
            "model_max_length": 4096,
        },
        "generation_config.json": {
            "bos_token_id": ids["endoftext"],
            "pad_token_id": ids["endoftext"],
            "eos_token_id": [ids["im_end"], ids["endoftext"]],
            "do_sample": False,
            "max_new_tokens": 256,
        },
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessor",
            **limits(IMAGE_PIXELS),
            **pixels,
        },
        "video_preprocessor_config.json": {
            "video_processor_type": "Qwen2VLVideoProcessor",
            **limits(pk.CLIP_PIXELS),
            "min_frames": 2,
            "max_frames": 32,
            "cap_pixels_per_frame": False,
            **pixels,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
