"""The runner of rank 0 beside its steps: its memory, trials and graphs are those of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from seesay.llm.running.cache_size import choose_cache_size
from seesay.llm.running.runner import ModelRunner

if TYPE_CHECKING:
    from seesay.device.ranks import Place
    from seesay.engine.process.ranks.followers import Followers
    from seesay.llm.models.decoder import Decoder
    from seesay.llm.plans.step_times import StepCosts
    from seesay.llm.running.runner_limits import RunnerLimits

T = TypeVar("T")


class LedMemory(ModelRunner):
    """A `ModelRunner` that has all ranks do what it does. There are as many KV blocks as the rank with the least room
    has. An error of any rank is raised here."""

    def __init__(self, decoder: Decoder, limits: RunnerLimits, *, place: Place, followers: Followers) -> None:
        super().__init__(decoder, limits)
        self._place = place
        self._followers = followers

    def _lead(self, name: str, work: Callable[[], T], **arguments: Any) -> tuple[T, list[Any]]:
        return self._followers.call(name, work, arguments)

    def profile(self, *, records_graphs: bool = False) -> int:
        own, _ = self._lead(
            "profile", partial(super().profile, records_graphs=records_graphs), records_graphs=records_graphs
        )
        return own

    def allocate_cache(
        self,
        *,
        num_blocks: int,
        share: float,
        reserved_bytes: int = 0,
        num_host_slots: int = 0,
        size: Sequence[int] | None = None,
    ) -> int:
        del size  # the ranks agree on it here
        if self.device.type == "cpu":  # all ranks take of the same memory
            share /= self._place.size
        options: dict[str, Any] = {"num_blocks": num_blocks, "share": share, "num_host_slots": num_host_slots}
        choose = partial(choose_cache_size, self, reserved_bytes=reserved_bytes, **options)
        own, others = self._lead("choose_cache_size", choose, **options)
        options["size"] = list(map(min, zip(own, *others, strict=True)))
        allocated, _ = self._lead("allocate_cache", partial(super().allocate_cache, **options), **options)
        return allocated

    def drop_cache(self) -> None:
        self._lead("drop_cache", super().drop_cache)

    def restore_cache(self) -> None:
        restored = super().restore_cache
        try:
            self._lead("restore_cache", restored)
        except BaseException:
            self.drop_cache()  # of the ranks that had room
            raise

    def restore_graphs(self) -> None:
        self._lead("restore_graphs", super().restore_graphs)

    def record_graphs(self) -> None:
        self._lead("record_graphs", super().record_graphs)

    def warm_up(self) -> None:
        self._lead("warm_up", super().warm_up)

    def measure_step_costs(self) -> StepCosts:
        own, _ = self._lead("measure_step_costs", super().measure_step_costs)
        return own  # each step ends with the slowest rank
