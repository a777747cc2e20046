"""The process of a rank that follows, `python -m seesay.engine.process.ranks.child`: loads its slice and follows.

It ends with the engine process, which is rank 0.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from seesay.engine.process.kinds import Hello
from seesay.engine.process.link import Link, LinkClosedError, receive_next
from seesay.engine.process.log_sender import send_logs
from seesay.engine.process.parent import Parent, exit_at_once
from seesay.engine.process.ranks import rank_messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from seesay.device.rank_group import Meeting
    from seesay.device.ranks import Ranks, Stages
    from seesay.engine.core.rank_parts import MakeRunner
    from seesay.engine.process.ranks.follower import Follower

ToLeader = Link[rank_messages.ToLeader, rank_messages.ToFollower]

_SWITCH_INTERVAL_S = 1e-4
"""As in the engine process."""


def main() -> int:
    """Follow until told to stop. Returns the exit status."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.disable()  # until the slice is loaded
    parent = Parent(receives=rank_messages.ToFollower)
    link: ToLeader = parent.link
    link.send(Hello())
    start = receive_next(link)
    parent.confirm()
    if not isinstance(start, rank_messages.Follow):
        raise TypeError(f"the first message must be Follow, got {type(start).__name__}")
    send_logs(link, start.log_level)
    busy = _Beating(link, start.beat_s)
    try:
        follower = _load(start, parent)
        busy.read = lambda: follower.activity.busy_s
        link.send(rank_messages.Answer(None, None))
        while not isinstance(message := receive_next(link), rank_messages.Stop):
            answer = follower.take(message)
            del message
            if answer is not None:
                link.send(answer)
    except LinkClosedError:
        return 1
    except BaseException as error:
        from seesay.engine.process.failures import describe_failure

        link.send(describe_failure(error))
        link.close(delivers=True)
        return 1
    return 0


class _Beating:
    """Sends beats from a thread. read: returns for how long this rank has been in its present step."""

    def __init__(self, link: ToLeader, beat_s: float) -> None:
        self._link = link
        self._beat_s = beat_s
        self.read: Callable[[], float] = lambda: 0.0
        threading.Thread(target=self._run, name="seesay-beat", daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                self._link.send(rank_messages.Beat(self.read()))
                time.sleep(self._beat_s)
        except LinkClosedError:
            pass


def _meet(parent: Parent, size: int) -> Meeting:
    """Return where the ranks meet."""
    from seesay.device.rank_group import Meeting, meet_in_file

    if (distant := parent.distant) is None:
        return meet_in_file(parent.descriptors[0], size)
    from seesay.engine.process.ranks.rank_store import RankStore

    return Meeting(RankStore(distant.store, distant.key.encode()), distant.address)


def _load(start: rank_messages.Follow, parent: Parent) -> Follower:
    from functools import partial

    from seesay.config import EngineConfig
    from seesay.device.host_memory import bound_allocators
    from seesay.device.rank_group import join_group, join_stages, pick_rank_device
    from seesay.device.ranks import ALONE, Place
    from seesay.engine.core.loading.loading import load_follower
    from seesay.engine.core.model_weights import ModelWeights
    from seesay.engine.opened_model import open_model
    from seesay.engine.process.ranks.follower import Follower, FollowingRunner, PlanFollower
    from seesay.engine.process.ranks.led_weights import FollowedWeights
    from seesay.engine.process.ranks.stage_runners import LaterStageRunner
    from seesay.engine.watchdog import exchange_limit_s

    gc.freeze()
    bound_allocators()
    link: ToLeader = parent.link
    link.send(rank_messages.Doing("opening the model"))
    config = EngineConfig(**start.engine)
    place = Place(start.rank, config.num_ranks)
    # Elsewhere this process sees its own device alone.
    device = pick_rank_device(config.device_type, place if parent.distant is None else ALONE)
    model = open_model(Path(start.folder), config)
    meeting, timeout_s = _meet(parent, place.size), exchange_limit_s(config.step_timeout_s, str(device))
    link.send(rank_messages.Doing("waiting for the other ranks"))
    ranks: Ranks | Stages
    if config.pp > 1:
        ranks = stages = join_stages(meeting, place, device, timeout_s=timeout_s)
        make_runner: MakeRunner = partial(LaterStageRunner, stages=stages)
    else:
        ranks = slices = join_group(meeting, place, device, timeout_s=timeout_s)
        make_runner = partial(FollowingRunner, ranks=slices)
    link.send(rank_messages.Doing("loading its slice of the weights"))
    runner = load_follower(model, config, device, make_runner, ranks)
    assert isinstance(runner, PlanFollower)
    gc.collect()
    gc.freeze()
    gc.enable()
    return Follower(runner, FollowedWeights(ModelWeights(model, config, runner.decoder.weights, None)))


def run() -> NoReturn:
    """End the process with the status of `main`."""
    exit_at_once(main())


if __name__ == "__main__":
    run()
