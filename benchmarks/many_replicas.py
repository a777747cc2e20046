"""What the distributor's routing reaches over many replicas: requests of a drawn trace, under a virtual clock.

    python benchmarks/many_replicas.py [--replicas 64] [--rate 10000] [--seconds 60] [--strategy cache_affinity]

The bodies of requests go through the routing of `seesay serve proxy` (`read_wish`, `Nodes.choose`). Replicas are
models: a prefix cache of blocks (2 million tokens, which a model of 3 billion parameters has on a large GPU and in host
memory) and a cache of pictures, from which the least recently used leaves first; one prompt after another, and answers
beside each other. The trace has what published ones have: gamma arrivals in bursts (BurstGPT), prompts and answers of
log-normal lengths (Azure's LLM inference traces), conversations whose turns repeat what was said (Mooncake), tenants
with a system prompt and pictures whose popularity is Zipf's.

Prints hits of all replicas by those of one cache without limits (tokens of prompts, pictures), and how much more than
the mean the fullest replica has: of running requests (mean and 99th percentile over time), and of computed seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import random
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seesay.bench.arrivals import arrival_times_s
from seesay.serving.proxy.nodes import Nodes
from seesay.serving.routing.affinity import read_wish
from seesay.serving.routing.node import Node

BLOCK = 64
CHARS_PER_TOKEN = 4
SAMPLE_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The trace. Lengths are medians, in tokens; `zipf` is the exponent of popularity."""

    num_tenants: int = 512
    num_pictures: int = 20_000
    zipf: float = 1.0
    picture_share: float = 0.5
    known_picture_share: float = 0.5
    mean_turns: float = 3.5
    think_s: float = 8.0
    system_tokens: int = 300
    message_tokens: int = 120
    answer_tokens: int = 130
    picture_tokens: int = 640
    burstiness: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A replica: what it keeps, and how fast it is."""

    num_blocks: int = 32_000
    num_pictures: int = 2_000
    token_s: float = 12e-6
    picture_s: float = 4e-3
    output_token_s: float = 12e-3


class Cache:
    """The least recently used leave first. `size` None keeps everything."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._kept: OrderedDict[object, None] = OrderedDict()
        self.num_asked = self.num_hits = 0

    def use(self, keys: Sequence[object]) -> int:
        """Return how many keys at the beginning are there, and keep all."""
        num_found = next((index for index, key in enumerate(keys) if key not in self._kept), len(keys))
        self.num_asked += len(keys)
        self.num_hits += num_found
        for key in keys:
            self._kept[key] = None
            self._kept.move_to_end(key)
        while self._size is not None and len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return num_found


@dataclass(slots=True)
class Conversation:
    """A conversation: its next body, and the blocks of it."""

    number: int
    tenant: int
    system: str
    picture: int | None
    turns_left: int
    messages: list[Any] = field(default_factory=list)
    blocks: list[object] = field(default_factory=list)
    num_blocks_said: int = 0

    def add(self, num_tokens: int) -> None:
        """Add tokens that no other conversation has."""
        for _ in range(max(1, num_tokens // BLOCK)):
            self.blocks.append((self.number, self.num_blocks_said))
            self.num_blocks_said += 1


@dataclass(frozen=True)
class Request:
    body: bytes
    blocks: tuple[object, ...]
    picture: int | None
    num_output_tokens: int


class Trace:
    """Draws requests in the order of their arrival."""

    def __init__(self, shape: Shape, rate: float, seconds: float, seed: int) -> None:
        self._shape, self._rng = shape, np.random.default_rng(seed)
        self._seconds, self._seed = seconds, seed
        self._tenant_weights = _zipf(shape.num_tenants, shape.zipf)
        self._picture_weights = _zipf(shape.num_pictures, shape.zipf)
        self._systems = [
            self._length(shape.system_tokens, 1.0) // BLOCK * BLOCK + BLOCK for _ in range(shape.num_tenants)
        ]
        self._rate = rate / shape.mean_turns
        self._num_conversations = 0

    def __iter__(self) -> Iterator[tuple[float, Request]]:
        """Yield (seconds, request)."""
        events: list[tuple[float, int, Conversation]] = []
        num = int(self._rate * self._seconds)
        for begin_s in arrival_times_s(num, rate=self._rate, burstiness=self._shape.burstiness, seed=self._seed):
            conversation = self._begin()
            heapq.heappush(events, (begin_s, conversation.number, conversation))
            yield from self._ask_until(begin_s, events)
        yield from self._ask_until(self._seconds, events)

    def _ask_until(
        self, end_s: float, events: list[tuple[float, int, Conversation]]
    ) -> Iterator[tuple[float, Request]]:
        while events and events[0][0] <= end_s:
            now_s, number, conversation = heapq.heappop(events)
            request = self._ask(conversation)
            if conversation.turns_left > 0:
                wait_s = self._shape.think_s * float(self._rng.lognormal(0.0, 0.8))
                heapq.heappush(events, (now_s + wait_s, number, conversation))
            yield now_s, request

    def _begin(self) -> Conversation:
        shape, rng = self._shape, self._rng
        self._num_conversations += 1
        number, tenant = self._num_conversations, _draw(self._tenant_weights, rng)
        picture = None
        if rng.random() < shape.picture_share:
            is_known = rng.random() < shape.known_picture_share
            picture = _draw(self._picture_weights, rng) if is_known else shape.num_pictures + number
        num_system = self._systems[tenant]
        conversation = Conversation(
            number,
            tenant,
            f"You are assistant {tenant}. ".ljust(num_system * CHARS_PER_TOKEN, "."),
            picture,
            int(rng.geometric(1 / shape.mean_turns)),
        )
        conversation.blocks += [(tenant, "system", index) for index in range(num_system // BLOCK)]
        if picture is not None:
            tokens = shape.picture_tokens // BLOCK
            conversation.blocks += [(tenant, "picture", picture, index) for index in range(tokens)]
        return conversation

    def _ask(self, conversation: Conversation) -> Request:
        shape = self._shape
        num_tokens = self._length(shape.message_tokens, 1.0)
        content: list[Any] = [
            {"type": "text", "text": f"{conversation.number} ".ljust(num_tokens * CHARS_PER_TOKEN, "x")}
        ]
        if conversation.picture is not None and not conversation.messages:
            url = f"https://example.com/{conversation.picture}.png"
            content.insert(0, {"type": "image_url", "image_url": {"url": url}})
        conversation.messages.append({"role": "user", "content": content})
        conversation.add(num_tokens)
        body = {"messages": [{"role": "system", "content": conversation.system}, *conversation.messages]}
        num_output = self._length(shape.answer_tokens, 0.9)
        request = Request(json.dumps(body).encode(), tuple(conversation.blocks), conversation.picture, num_output)
        conversation.messages.append({"role": "assistant", "content": "y" * (num_output * CHARS_PER_TOKEN)})
        conversation.add(num_output)
        conversation.turns_left -= 1
        return request

    def _length(self, median: int, sigma: float) -> int:
        return int(min(8192, max(1, median * self._rng.lognormal(0.0, sigma))))


def _zipf(number: int, exponent: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    weights = 1.0 / np.arange(1, number + 1) ** exponent
    total: np.ndarray[Any, np.dtype[np.float64]] = np.cumsum(weights / weights.sum())
    return total


def _draw(cumulated: np.ndarray[Any, np.dtype[np.float64]], rng: np.random.Generator) -> int:
    return min(int(np.searchsorted(cumulated, rng.random())), len(cumulated) - 1)


@dataclass
class Machine:
    """A replica while it computes."""

    node: Node
    replica: Replica
    blocks: Cache
    pictures: Cache
    free_at_s: float = 0.0
    computed_s: float = 0.0

    def take(self, request: Request, now_s: float) -> float:
        """Return when it will have answered."""
        num_new = len(request.blocks) - self.blocks.use(request.blocks)
        prefill_s = num_new * BLOCK * self.replica.token_s
        if request.picture is not None and not self.pictures.use([request.picture]):
            prefill_s += self.replica.picture_s
        self.computed_s += prefill_s + 1e-5 * request.num_output_tokens
        self.free_at_s = max(now_s, self.free_at_s) + prefill_s
        return self.free_at_s + request.num_output_tokens * self.replica.output_token_s


@dataclass
class Result:
    """What is printed."""

    requests: int
    prefix_hits: float
    picture_hits: float
    fullest_running: float
    fullest_running_p99: float
    fullest_computed: float
    choosing_us: float


async def simulate(
    shape: Shape, replicas: Sequence[Replica], *, rate: float, seconds: float, strategy: str, seed: int = 0
) -> Result:
    """Distribute a trace. The loads are those of the second half, when the first conversations have ended."""
    random.seed(seed)
    nodes = Nodes(strategy)
    machines = {}
    for index, replica in enumerate(replicas):
        node = Node(f"http://10.0.{index // 250}.{index % 250 + 1}:23333")
        nodes.add(node)  # its health is asked for when this coroutine waits, which it does not
        machines[node.name] = Machine(node, replica, Cache(replica.num_blocks), Cache(replica.num_pictures))
    all_blocks, all_pictures = Cache(None), Cache(None)
    running: list[tuple[float, str]] = []
    ratios: list[float] = []
    computed_before: list[float] = [0.0 for _ in machines]
    num, choosing_s, sample_at_s = 0, 0.0, seconds / 2
    for now_s, request in Trace(shape, rate, seconds, seed):
        while running and running[0][0] <= now_s:
            machines[heapq.heappop(running)[1]].node.num_running -= 1
        if now_s >= sample_at_s:
            if not ratios:
                computed_before = [machine.computed_s for machine in machines.values()]
            ratios.append(_fullest([node.num_running for node in nodes]))
            sample_at_s += SAMPLE_S
        begun_s = time.perf_counter()
        chosen = nodes.choose(read_wish(request.body), ())
        choosing_s += time.perf_counter() - begun_s
        assert chosen is not None
        chosen.num_running += 1
        heapq.heappush(running, (machines[chosen.name].take(request, now_s), chosen.name))
        all_blocks.use(request.blocks)
        if request.picture is not None:
            all_pictures.use([request.picture])
        num += 1
    await nodes.close()
    computed = [machine.computed_s for machine in machines.values()]
    return Result(
        requests=num,
        prefix_hits=_sum_hits(machine.blocks for machine in machines.values()) / max(1, all_blocks.num_hits),
        picture_hits=_sum_hits(machine.pictures for machine in machines.values()) / max(1, all_pictures.num_hits),
        fullest_running=sum(ratios) / len(ratios),
        fullest_running_p99=float(np.percentile(ratios, 99)),
        fullest_computed=_fullest([after - before for after, before in zip(computed, computed_before)]),
        choosing_us=1e6 * choosing_s / num,
    )


def _sum_hits(caches: Iterable[Cache]) -> int:
    return sum(cache.num_hits for cache in caches)


def _fullest(loads: Sequence[float]) -> float:
    mean = sum(loads) / len(loads)
    return max(loads) / mean if mean else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--rate", type=float, default=10_000.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--strategy", default="cache_affinity")
    parser.add_argument("--zipf", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    replicas = [Replica()] * given.replicas
    work = simulate(
        Shape(zipf=given.zipf),
        replicas,
        rate=given.rate,
        seconds=given.seconds,
        strategy=given.strategy,
        seed=given.seed,
    )
    result = asyncio.run(work)
    print(json.dumps({name: round(value, 3) for name, value in vars(result).items()}))


if __name__ == "__main__":
    main()
