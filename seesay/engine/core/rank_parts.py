"""The parts of a core that other processes have a share in: ranks that compute its model together, its encoder."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from seesay.config import EngineConfig
    from seesay.device.linear.loaded_weights import LoadedWeights
    from seesay.device.ranks import Ranks, Stages
    from seesay.encoders.encoder import Encoder, LoadedEncoder
    from seesay.engine.core.adapters import AdapterStore
    from seesay.engine.core.model_weights import ModelWeights
    from seesay.engine.opened_model import OpenedModel
    from seesay.llm.models.decoder import Decoder
    from seesay.llm.running.runner import ModelRunner
    from seesay.llm.running.runner_limits import RunnerLimits

MakeRunner = Callable[["Decoder", "RunnerLimits"], "ModelRunner"]
"""Makes a runner, as `ModelRunner` does."""
MakeWeights = Callable[["OpenedModel", "EngineConfig", "LoadedWeights", "LoadedEncoder | None"], "ModelWeights"]
"""Makes the weights that may be replaced, as `ModelWeights` does."""

MakeAdapterStore = Callable[["ModelRunner", "LoadedEncoder | None", Container[str]], "AdapterStore"]
"""Makes what reads adapters, as `AdapterStore` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParts:
    """ranks: what the slice of this rank is summed through, or its place among stages. wait_until_loaded: waits for the
    other ranks' slices, and raises the errors of these."""

    ranks: Ranks | Stages
    make_runner: MakeRunner
    make_weights: MakeWeights
    make_adapter_store: MakeAdapterStore
    wait_until_loaded: Callable[[], object]


class OpenRemote(Protocol):
    """Loads the vision tower of a model in another process."""

    def __call__(
        self, model: OpenedModel, config: EngineConfig, /, *, device: torch.device, dtype: torch.dtype
    ) -> Encoder: ...


class JoinRanks(Protocol):
    """Meets the other ranks of a model."""

    def pick_device(self) -> torch.device:
        """Return the device of this rank. Raises `ConfigError` for devices that do not exist."""
        ...

    def join(self, device: torch.device) -> RankParts:
        """Return the parts of a core on `device` that lead the others, once all are there."""
        ...
