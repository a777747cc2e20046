"""The saved state of a training, from which another process goes on: weights, averages, momenta, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from demo_training.optimizer import Average, Optimizer

STATE = "state.pt"


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a training is: its steps, the seconds of its loop, and the first pack that nobody has drawn yet."""

    step: int = 0
    elapsed_s: float = 0.0
    next_pack: int = 0


def save_state(folder: Path, model: nn.Module, optimizer: Optimizer, average: Average, progress: Progress) -> None:
    """Write the state of a training, which is the old or the new one whenever the process ends."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "averages": average.values,
        "progress": [progress.step, progress.elapsed_s, progress.next_pack],
    }
    torch.save(state, folder / f"{STATE}.new")
    (folder / f"{STATE}.new").replace(folder / STATE)


def read_progress(folder: Path) -> Progress:
    """Return how far the training of `folder` is. Raises FileNotFoundError if none has left its state there."""
    step, elapsed_s, next_pack = _load(folder)["progress"]
    return Progress(step=step, elapsed_s=elapsed_s, next_pack=next_pack)


def load_state(folder: Path, model: nn.Module, optimizer: Optimizer, average: Average) -> None:
    """Give a model on its device, its optimizer and its averages the values of `save_state`."""
    state = _load(folder)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    average.load(state["averages"])


def _load(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    return loaded
