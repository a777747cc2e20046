"""The options of a run that all methods share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from seesay.config.checks import check_types, require

_MOST_SAMPLES, _MOST_TOKENS, _MOST_BATCH = 1 << 16, 1 << 20, 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteSettings:
    """model: folder, hub id or 'seesay-demo'. work_dir: a new or empty folder for the result, or that of an interrupted
    run with the same options, which goes on.

    calib_dataset: a .txt or .jsonl file, a folder with texts and pictures, 'built-in' for the texts and pictures that
        come with seesay, or 'ptb', 'wikitext2', 'c4', 'pileval' (with the `datasets` package). None is 'built-in', for
        the built-in model its scenes.
    calib_samples: prompts, of at most `calib_seqlen` tokens each; None is 2048, or the model's longest text where that
        is shorter. batch_size: prompts that are computed together.
    dtype: of activations; 'auto' is the checkpoint's on a GPU, float32 on the CPU. device: 'auto', 'cuda', 'cuda:N' or
        'cpu'.
    vision: quantize the vision tower, too.
    revision, download_dir: for a model of the hub.
    plugins: Python files or names of modules with model families: see `EngineConfig`.
    """

    model: str | os.PathLike[str]
    work_dir: str | os.PathLike[str]
    calib_dataset: str | os.PathLike[str] | None = None
    calib_samples: int = 128
    calib_seqlen: int | None = None
    batch_size: int = 1
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    device: str = "auto"
    vision: bool = False
    revision: str | None = None
    download_dir: str | os.PathLike[str] | None = None
    plugins: Sequence[str | os.PathLike[str]] = ()

    def __post_init__(self) -> None:
        check_types(self)
        for name, least, most in (
            ("calib_samples", 2, _MOST_SAMPLES),
            ("calib_seqlen", 8, _MOST_TOKENS),
            ("batch_size", 1, _MOST_BATCH),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            require(least <= value <= most, name, value, f"must be in [{least}, {most}]")
        require(bool(os.fspath(self.work_dir)), "work_dir", self.work_dir, "must be the path of a folder")
        is_named = self.calib_dataset is None or bool(os.fspath(self.calib_dataset))
        require(is_named, "calib_dataset", self.calib_dataset, "must be the path of a file or folder, or a name")
