"""Starts the ranks that follow the engine process, and makes the parts of a core that lead them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from seesay.engine.process.ranks.executor import LocalExecutor
from seesay.engine.process.ranks.followers import Followers
from seesay.engine.process.ranks.rank_messages import Follow
from seesay.engine.watchdog import exchange_limit_s, hang_limit_s
from seesay.system.liveness import LIMIT_S

if TYPE_CHECKING:
    import torch

    from seesay.config import EngineConfig
    from seesay.device.ranks import Ranks, Stages
    from seesay.engine.core.rank_parts import MakeRunner, RankParts
    from seesay.engine.process.kinds import Start
    from seesay.engine.process.ranks.executor import Executor


def start_followers(start: Start, size: int, *, lose: Callable[[Exception], None]) -> Followers:
    """Start ranks 1 … size - 1 for the model of `start`. `lose`: see `Followers`. Raises `OSError`, `ConfigError`."""
    follow = Follow(start.folder, start.engine, 0, start.log_level, start.beat_s)
    return Followers(follow, size, lose=lose, executor=_make_executor(start.engine, size))


def _make_executor(engine: Mapping[str, object], size: int) -> Executor:
    if engine.get("distributed_executor_backend") != "ray":
        return LocalExecutor(size)
    from seesay.engine.process.ranks.ray_executor import RayExecutor

    return RayExecutor(size, needs_gpus=engine.get("device_type") != "cpu")


class Joining:
    """A `JoinRanks`: meets the followers, as rank 0."""

    def __init__(self, followers: Followers, config: EngineConfig) -> None:
        self._followers, self._config = followers, config

    def pick_device(self) -> torch.device:
        """Return the device of rank 0. Raises `ConfigError` for devices that do not exist."""
        from seesay.device.ranks import Place

        return self._followers.executor.pick_device(self._config.device_type, Place(0, self._followers.size))

    def join(self, device: torch.device) -> RankParts:
        """Return the parts of a core on `device` that lead the others, once all are there."""
        from seesay.device.rank_group import join_group, join_stages
        from seesay.device.ranks import Place
        from seesay.engine.core.rank_parts import RankParts
        from seesay.engine.process.ranks.led_adapters import LedAdapterStore
        from seesay.engine.process.ranks.led_runner import LedRunner
        from seesay.engine.process.ranks.led_weights import LedWeights
        from seesay.engine.process.ranks.stage_runners import FirstStageRunner

        followers = self._followers
        timeout_s = exchange_limit_s(self._config.step_timeout_s, str(device))
        meeting, place = followers.executor.meet(), Place(0, followers.size)
        ranks: Ranks | Stages
        if self._config.pp > 1:
            ranks = stages = join_stages(meeting, place, device, timeout_s=timeout_s)
            make_runner: MakeRunner = partial(FirstStageRunner, stages=stages, followers=followers)
        else:
            ranks = slices = join_group(meeting, place, device, timeout_s=timeout_s)
            make_runner = partial(LedRunner, ranks=slices, followers=followers)
        return RankParts(
            ranks=ranks,
            make_runner=make_runner,
            make_weights=partial(LedWeights, followers=followers),
            make_adapter_store=partial(LedAdapterStore, followers=followers),
            wait_until_loaded=followers.wait_for_answers,
        )


def watch(followers: Followers, config: EngineConfig, device: str, beat_s: float) -> None:
    """From now on, treat followers as hung as the engine process is by its frontend."""
    limit_s = hang_limit_s(config.step_timeout_s, device)
    followers.watch_steps(limit_s, min(LIMIT_S, limit_s + 2 * beat_s))
