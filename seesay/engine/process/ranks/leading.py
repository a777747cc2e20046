"""Starts the ranks that follow the engine process, and makes the parts of a core that lead them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from seesay.engine.process.ranks.followers import Followers
from seesay.engine.process.ranks.messages import Follow
from seesay.engine.watchdog import exchange_limit_s, hang_limit_s
from seesay.system.liveness import LIMIT_S

if TYPE_CHECKING:
    import torch

    from seesay.config import EngineConfig
    from seesay.engine.core.rank_parts import RankParts
    from seesay.engine.process.kinds import Start


def start_followers(start: Start, size: int, *, lose: Callable[[Exception], None]) -> Followers:
    """Start ranks 1 … size - 1 for the model of `start`. `lose`: see `Followers`. Raises `OSError`."""
    follow = Follow(start.folder, start.engine, 0, start.log_level, start.beat_s)
    return Followers(follow, size, lose=lose)


def join(followers: Followers, config: EngineConfig, device: torch.device) -> RankParts:
    """Meet the followers, as rank 0."""
    from seesay.device.rank_group import join_group
    from seesay.device.ranks import Place
    from seesay.engine.core.rank_parts import RankParts
    from seesay.engine.process.ranks.led_runner import LedRunner
    from seesay.engine.process.ranks.led_weights import LedWeights

    timeout_s = exchange_limit_s(config.step_timeout_s, str(device))
    ranks = join_group(followers.file, Place(0, followers.size), device, timeout_s=timeout_s)
    return RankParts(
        ranks=ranks,
        make_runner=partial(LedRunner, ranks=ranks, followers=followers),
        make_weights=partial(LedWeights, followers=followers),
        wait_until_loaded=partial(followers.wait_for_answers, "loading its slice of the weights"),
    )


def watch(followers: Followers, config: EngineConfig, device: str, beat_s: float) -> None:
    """From now on, treat followers as hung as the engine process is by its frontend."""
    limit_s = hang_limit_s(config.step_timeout_s, device)
    followers.watch_steps(limit_s, min(LIMIT_S, limit_s + 2 * beat_s))
