"""Messages between a core and the process of its vision encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seesay.engine.process.kinds import Array, Failure, Hello, LogRecord, Message, StartFailed, restore_features

if TYPE_CHECKING:
    import torch

# --- from the core ----------------------------------------------------------------------------------------------------


class Start(Message):
    """Load the tower of the model in `folder`. `engine`: the fields of the core's configuration."""

    folder: str
    engine: dict[str, Any]
    device: str
    dtype: str
    log_level: int


class Encode(Message):
    """Encode items. Answered by `Encoded`."""

    features: list[dict[str, Any]]

    @classmethod
    def of(cls, features: Sequence[Mapping[str, Any]]) -> Encode:
        return cls([dict(each) for each in features])

    def restore(self) -> list[dict[str, Any]]:
        return [restore_features(each) for each in self.features]


class Stop(Message):
    """End."""


ToTower = Start | Encode | Stop

# --- to the core ------------------------------------------------------------------------------------------------------


class Loaded(Message):
    """The tower is loaded, and its largest call was tried."""


class Encoded(Message):
    """The embeddings of the items, as bytes of `dtype`; `failure` or `raised` says why there are none."""

    embeddings: list[Array]
    dtype: str
    failure: Failure | None = None
    raised: StartFailed | None = None

    @classmethod
    def of(cls, embeddings: Sequence[torch.Tensor]) -> Encoded:
        import torch

        # NumPy has no bfloat16.
        arrays = [each.detach().cpu().contiguous().view(torch.uint8).numpy() for each in embeddings]
        return cls(arrays, str(embeddings[0].dtype).removeprefix("torch.") if embeddings else "")

    def restore(self) -> list[torch.Tensor]:
        """Return the embeddings in memory of their own, on the CPU."""
        import torch

        dtype = getattr(torch, self.dtype) if self.embeddings else torch.float32
        return [torch.from_numpy(each).clone().view(dtype) for each in self.embeddings]


FromTower = Hello | Loaded | Encoded | LogRecord | StartFailed
