"""Nodes that fail, are down, or do not have what another distributor has stored there. Nodes are real processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import httpx
import pytest
from echo_node import EchoProcess, echo_nodes
from live_proxy import serve_proxy
from live_server import make_settings
from waiting import wait_until

from seesay.serving.registration import Registration
from seesay.serving.routing.node import MOST_FAILED, REST_S


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[EchoProcess]]:
    with echo_nodes(3) as nodes:
        yield nodes


@pytest.fixture
def failing(nodes: list[EchoProcess], request: pytest.FixtureRequest) -> Iterator[EchoProcess]:
    """The first node, which answers with a status from now on."""
    httpx.post(f"{nodes[0].url}/set_answers", json={"status": request.param}).raise_for_status()
    yield nodes[0]
    httpx.post(f"{nodes[0].url}/set_answers", json={"status": 200}).raise_for_status()


def count(node: EchoProcess, name: str) -> int:
    return int(httpx.get(f"{node.url}/counts").json()[name])


def urls_of(nodes: Sequence[EchoProcess]) -> list[str]:
    return [node.url for node in nodes]


def test_what_another_distributor_stored_is_found(nodes: list[EchoProcess]) -> None:
    """A distributor that has not seen where a thing came to asks the nodes, and remembers who has it."""
    with serve_proxy(urls_of(nodes), strategy="random") as proxy:
        for node in nodes:
            before = [count(each, "refused") for each in nodes]
            for _ in range(4):
                assert httpx.get(f"{proxy.url}/v1/files/file-{node.name}").json()["node"] == node.name
                answer = proxy.post("/v1/responses", input="x", previous_response_id=f"resp_{node.name}")
                assert answer.json()["node"] == node.name
            assert all(count(each, "refused") - old <= 2 for each, old in zip(nodes, before, strict=True))
        missing = httpx.get(f"{proxy.url}/v1/files/file-nobody")
        assert missing.status_code == 404 and missing.json() == {"error": {"message": "no"}}


@pytest.mark.parametrize("strategy", ["random", "min_expected_latency", "min_observed_latency", "cache_affinity"])
@pytest.mark.parametrize("failing", [500], indirect=True)
def test_a_node_that_fails_at_once_does_not_draw_requests(
    failing: EchoProcess, nodes: list[EchoProcess], strategy: str
) -> None:
    before = count(failing, "refused")
    with serve_proxy(urls_of(nodes), strategy=strategy) as proxy:
        statuses = Counter(proxy.post(prompt=f"{index} words").status_code for index in range(60))
        assert statuses.keys() <= {200, 500} and statuses[500] == count(failing, "refused") - before <= MOST_FAILED
        [node] = [node for node in proxy.nodes if node.url == failing.url]
        if statuses[500] == MOST_FAILED:
            assert httpx.get(f"{proxy.url}/nodes/status").json()[failing.url]["is_resting"]
            node.rests_until_s -= REST_S
            assert not node.is_resting
        assert not node.latencies_s, "how fast it fails is not how fast it is"


@pytest.mark.parametrize("failing", [429], indirect=True)
def test_a_node_that_has_too_much_to_do_is_passed_over(failing: EchoProcess, nodes: list[EchoProcess]) -> None:
    with serve_proxy(urls_of(nodes)) as proxy:
        assert {proxy.post(prompt=f"{index} words").status_code for index in range(20)} == {200}
        proxy.call(lambda: [proxy.nodes.remove(node.url) for node in nodes[1:]])
        assert proxy.post(prompt="0 words").status_code == 429, "there is no other"


def test_a_model_whose_node_is_down_comes_again(nodes: list[EchoProcess]) -> None:
    """404 would say that there is no such model, and clients do not ask again."""
    with echo_nodes(1) as [other], serve_proxy([*urls_of(nodes[1:]), other.url]) as proxy:
        wait_until(lambda: all(node.models for node in proxy.nodes))
        assert proxy.post(model="only-a").json()["node"] == "a"
        other.process.kill()
        other.process.wait()
        answer = proxy.post(model="only-a")
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert proxy.post(model="nobody's").status_code == 200, "a node says itself what it does not have"


def test_commands_say_which_node_did_not_get_them(nodes: list[EchoProcess]) -> None:
    with serve_proxy([]) as proxy:
        answer = proxy.post("/reset_caches")
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "no_node"
        assert httpx.get(f"{proxy.url}/v1/models").headers["retry-after"]
    with serve_proxy([nodes[0].url, "http://127.0.0.1:9"]) as proxy:
        wait_until(lambda: sorted(node.is_up for node in proxy.nodes) == [False, True])
        answer = proxy.post("/reset_caches")
        assert answer.status_code == 502 and "127.0.0.1:9 does not answer" in answer.text
        assert httpx.get(f"{proxy.url}/v1/models").status_code == 200


def test_a_distributor_is_no_node_of_its_own() -> None:
    with serve_proxy([]) as proxy:
        httpx.post(f"{proxy.url}/nodes/add", json={"url": proxy.url}).raise_for_status()
        answer = proxy.post(prompt="x")
        assert answer.status_code == 508 and answer.json()["error"]["code"] == "loop_detected"


def test_a_removed_server_stays_away_although_it_registers_again(nodes: list[EchoProcess]) -> None:
    """Until it is started again, or somebody adds it."""
    with serve_proxy([]) as proxy:
        registration = Registration(make_settings(host="127.0.0.1", port=1, proxy_url=proxy.url), ())
        with httpx.Client() as client:
            assert not registration._add(client) and len(list(proxy.nodes)) == 1
            httpx.post(f"{proxy.url}/nodes/remove", json={"url": registration._url()}).raise_for_status()
            assert not registration._add(client) and not list(proxy.nodes)
            httpx.post(f"{proxy.url}/nodes/add", json={"url": registration._url()}).raise_for_status()
            assert not registration._add(client) and len(list(proxy.nodes)) == 1


def test_a_node_that_refuses_to_shut_down_stays(nodes: list[EchoProcess]) -> None:
    httpx.post(f"{nodes[0].url}/set_answers", json={"status": 200}).raise_for_status()
    with serve_proxy([]) as proxy:
        httpx.post(f"{proxy.url}/nodes/add", json={"url": "http://127.0.0.1:9"}).raise_for_status()
        answer = httpx.post(f"{proxy.url}/nodes/terminate", json={"url": "http://127.0.0.1:9"})
        assert answer.status_code == 502 and "is still one" in answer.json()["error"]["message"]
        assert answer.json()["error"]["type"] == "server_error"
        assert len(list(proxy.nodes)) == 1
