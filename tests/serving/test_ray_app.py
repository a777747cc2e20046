"""The application of Ray Serve: streams, autoscaling by requests and KV use, refusals."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray_cluster import ray_cluster
from waiting import wait_until

from seesay.errors import ConfigError
from seesay.serving.ray_app import Scaling, ScalingPolicy, build_app

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # those of Ray's own imports, and of what it starts and leaves
]
URL = "http://127.0.0.1:18023"
ENGINE = {"device_type": "cpu", "session_len": 512, "num_gpu_blocks": 16, "max_batch_size": 4}


@pytest.mark.parametrize(
    ("requests", "kv_use", "replicas"),
    [(0.0, [0.0], 1), (9.0, [0.1], 3), (2.0, [0.9, 0.9], 4), (400.0, [1.0] * 5, 5)],
)
def test_as_many_replicas_as_queues_and_caches_ask_for(requests: float, kv_use: list[float], replicas: int) -> None:
    context: Any = SimpleNamespace(
        total_num_requests=requests,
        aggregated_metrics={"kv_use": dict(enumerate(kv_use))},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=5,
    )
    assert ScalingPolicy(target_requests=4.0, target_kv_use=0.5)(context) == (replicas, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modle_path": "x"}, "there is no option 'modle_path'"),
        ({"server": {"port": 8000}}, "server.port is not for applications of Ray Serve"),
        ({"server": {"max_quue": 1}}, "unexpected keyword argument 'max_quue'"),
        ({"engine": {"tp": 0}}, "tp must be in"),
        ({"scaling": {"min_replicas": 3}}, "max_replicas not the smaller one"),
        ({"scaling": {"target_kv_use": 2.0}}, "target_kv_use in"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with pytest.raises(ConfigError, match=message):
        build_app(options)


def test_scaling_is_checked() -> None:
    with pytest.raises(ConfigError, match="max_replicas"):
        Scaling(max_replicas=2.5)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def application() -> Iterator[Any]:
    """One of a model on the CPU, of which there may be two replicas."""
    with ray_cluster(2, num_cpus=3) as cluster:
        import ray
        from ray import serve

        ray.init(cluster.address, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": 18023})
        scaling = {"max_replicas": 2, "target_requests": 3.0, "upscale_delay_s": 0.5, "downscale_delay_s": 600.0}
        serve.run(build_app({"engine": ENGINE, "server": {"api_keys": ["k"]}, "scaling": scaling}))
        yield serve
        serve.shutdown()
        ray.shutdown()


def ask(text: str, **options: Any) -> httpx.Response:
    body = {"model": "seesay-demo", "messages": [{"role": "user", "content": text}], **options}
    return httpx.post(f"{URL}/v1/chat/completions", json=body, headers={"authorization": "Bearer k"}, timeout=120)


def num_replicas(application: Any) -> int:
    """Return how many replicas run."""
    found: int = application.status().applications["default"].deployments["seesay"].replica_states.get("RUNNING", 0)
    return found


def test_routes_are_those_of_a_server(application: Any) -> None:
    assert ask("Calculate 3 + 4.").json()["choices"][0]["message"]["content"] == "3 + 4 = 7."
    assert httpx.post(f"{URL}/v1/chat/completions", json={}, timeout=60).status_code == 401
    assert "seesay_answers_total" in httpx.get(f"{URL}/metrics", headers={"authorization": "Bearer k"}, timeout=60).text


def test_streams_are_not_buffered(application: Any) -> None:
    body = {
        "model": "seesay-demo",
        "messages": [{"role": "user", "content": "What can you do?"}],
        "stream": True,
        "max_tokens": 200,
        "ignore_eos": True,
    }
    arrived: list[tuple[float, str]] = []
    headers = {"authorization": "Bearer k"}
    with httpx.stream("POST", f"{URL}/v1/chat/completions", json=body, headers=headers, timeout=120) as stream:
        assert stream.status_code == 200
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                arrived.append((time.monotonic(), json.loads(line[6:])["choices"][0]["delta"].get("content") or ""))
    assert len("".join(text for _, text in arrived)) > 200
    assert arrived[-1][0] - arrived[1][0] > 0.05, "the first token does not wait for the last one"


def test_replicas_are_added_under_load(application: Any) -> None:
    def load() -> None:
        while not is_enough.is_set():
            assert ask("go on", max_tokens=300, ignore_eos=True).status_code == 200

    is_enough = threading.Event()
    threads = [threading.Thread(target=load) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: num_replicas(application) == 2, "there are two replicas")
    finally:
        is_enough.set()
        for thread in threads:
            thread.join(120)
