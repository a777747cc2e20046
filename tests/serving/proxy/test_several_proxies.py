"""Two distributors in front of the same nodes, and nodes of which one is slow. Nodes are real processes."""

from __future__ import annotations

import concurrent.futures
import threading
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from echo_node import EchoProcess, echo_nodes, start_node
from live_proxy import LiveProxy, serve_proxy
from waiting import wait_until

from seesay.serving.proxy.nodes import Nodes
from seesay.serving.routing.affinity import Wish
from seesay.serving.routing.node import Node
from seesay.serving.routing.strategies import LOAD_BOUND

NUM_AT_ONCE = 16


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[EchoProcess]]:
    with echo_nodes(4) as nodes:
        yield nodes


@pytest.fixture
def proxies(nodes: list[EchoProcess]) -> Iterator[tuple[LiveProxy, LiveProxy]]:
    urls = [node.url for node in nodes]
    with serve_proxy(urls) as first, serve_proxy(urls[::-1]) as second:
        yield first, second


def test_two_agree_on_places(proxies: tuple[LiveProxy, LiveProxy]) -> None:
    """Without talking to each other, and whatever order they were told of the nodes in."""
    places = Counter[str]()
    for index in range(40):
        found = {proxy.post(prompt=f"{index} is a number").json()["node"] for proxy in proxies}
        assert len(found) == 1, f"the distributors disagree on request {index}: {found}"
        places.update(found)
    assert len(places) == 4


async def test_nodes_that_have_said_their_models_get_no_more_and_no_less() -> None:
    """A request that names no model goes to the same node, whichever of them have been asked for theirs."""
    urls = [f"http://127.0.0.1:{port}" for port in range(1, 5)]
    for index in range(20):
        places = set()
        for number in range(len(urls) + 1):
            nodes = Nodes("cache_affinity")
            for url in urls:
                nodes.add(Node(url, models=frozenset({"echo"} if url in urls[:number] else ())))
            chosen = nodes.choose(Wish(key=b"%d" % index), ())
            await nodes.close()
            assert chosen is not None
            places.add(chosen.name)
        assert len(places) == 1


def test_two_share_the_load(proxies: tuple[LiveProxy, LiveProxy], nodes: list[EchoProcess]) -> None:
    """Each bounds what it sends itself, so that together they do not drown the node of one hot picture."""
    most = dict.fromkeys((node.url for node in nodes), 0)
    done = threading.Event()

    def watch() -> None:
        with httpx.Client(timeout=60) as client:
            while not done.is_set():
                for node in nodes:
                    most[node.url] = max(most[node.url], client.get(f"{node.url}/counts").json()["running"])

    def ask(index: int) -> int:
        image = {"type": "image_url", "image_url": {"url": "https://example.com/hot.png"}}
        messages = [{"role": "user", "content": [image]}]
        return proxies[index % 2].post(messages=messages, wait_s=0.2).status_code

    watching = threading.Thread(target=watch)
    watching.start()
    with concurrent.futures.ThreadPoolExecutor(2 * NUM_AT_ONCE) as threads:
        assert [*threads.map(ask, range(160))] == [200] * 160
    done.set()
    watching.join(60)
    assert max(most.values()) <= 2 * (LOAD_BOUND * NUM_AT_ONCE / 4 + 2)
    assert sum(number > 0 for number in most.values()) >= 3, "few nodes share a hot picture"


def test_one_distributor_ends(nodes: list[EchoProcess]) -> None:
    """The other one goes on, with the nodes that both had."""
    urls = [node.url for node in nodes]
    with serve_proxy(urls) as left:
        with serve_proxy(urls) as ending, concurrent.futures.ThreadPoolExecutor(8) as threads:
            asked = [threads.submit(ending.post, prompt=f"{index}", wait_s=8) for index in range(8)]
            wait_until(lambda: sum(node["unfinished"] for node in status(ending).values()) == 8)
            ending.call(ending.uvicorn.drain)
            assert left.post(prompt="x").status_code == 200
            assert [future.result().status_code for future in asked] == [200] * 8
        assert [left.post(prompt=f"{index}").status_code for index in range(8)] == [200] * 8
        assert all(node["is_up"] for node in status(left).values())


def status(proxy: LiveProxy) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = httpx.get(f"{proxy.url}/nodes/status", timeout=60).json()
    return found


@pytest.mark.parametrize("strategy", ["cache_affinity", "min_expected_latency", "min_observed_latency"])
def test_slow_node_gets_less(nodes: list[EchoProcess], strategy: str) -> None:
    """A node that takes three seconds for each answer is up, and still gets few requests."""
    slow = start_node("slow", slow_s=3.0)
    try:
        with serve_proxy([slow.url, *(node.url for node in nodes[:3])], strategy=strategy) as proxy:
            with concurrent.futures.ThreadPoolExecutor(NUM_AT_ONCE) as threads:
                answers = [*threads.map(lambda index: proxy.post(prompt=f"{index} is a number"), range(300))]
            assert {answer.status_code for answer in answers} == {200}
            shares = Counter(answer.json()["node"] for answer in answers)
            assert shares["slow"] < 300 / 4 and len(shares) >= 3, shares  # on a busy machine, the others are slow, too
            assert status(proxy)[slow.url]["is_up"]
    finally:
        slow.process.kill()
        slow.process.wait()
