"""What those who run a server look at: health, version, metrics, documentation, logs, and signals."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import openai_schemas as schemas
import pytest
from forked_python import forked
from live_server import LiveServer, ask_about, make_data_url, make_settings, serve

import seesay
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError
from seesay.serving.app import create_app
from seesay.serving.server import DrainingServer

CHAT = "/v1/chat/completions"


def read_metrics(server: LiveServer) -> dict[str, float]:
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def test_health_version_and_models(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).json() == {"status": "ok", "weights_epoch": 0, "frontends_up": 1}
    assert (await http.get("/version")).json() == {"version": seesay.__version__}
    models = (await http.get("/v1/models")).json()
    schemas.check(models, schemas.MODELS)
    assert models["data"][0]["max_model_len"] == 512


def test_metrics_count_what_happened(server: LiveServer) -> None:
    before = read_metrics(server)
    body = {"messages": ask_about(make_data_url(seed=77), "?"), "max_tokens": 4, "ignore_eos": True}
    usage = server.post(CHAT, body).json()["usage"]
    server.post(CHAT, {**body, "top_p": 7})
    after = read_metrics(server)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown('seesay_http_requests_total{endpoint="/v1/chat/completions",status="200"}') == 1
    assert grown('seesay_http_requests_total{endpoint="/v1/chat/completions",status="400"}') == 1
    assert grown("seesay_prompt_tokens_total") == usage["prompt_tokens"]
    assert grown("seesay_generated_tokens_total") == 4
    assert grown("seesay_vision_tokens_total") == usage["prompt_tokens_details"]["vision_tokens"] > 0
    assert grown('seesay_media_items_total{modality="image"}') == 1
    assert grown("seesay_time_to_first_token_seconds_count") == 1
    assert grown("seesay_time_per_output_token_seconds_count") == 1
    assert grown('seesay_stage_seconds_count{stage="encode"}') == 1
    assert grown("seesay_encoder_items_total") == 1
    assert grown('seesay_encoder_batch_size_bucket{le="1.0"}') == 1
    assert grown('seesay_cache_lookups_total{cache="feature",result="miss"}') == 1
    assert after["seesay_kv_usage_ratio"] == after["seesay_requests_running"] == after["seesay_requests_waiting"] == 0
    assert after["seesay_kv_blocks"] > 0


async def test_caches_are_reset(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    url = make_data_url(seed=977)
    body = {"messages": ask_about(url), "max_tokens": 3, "temperature": 0}
    first, again = [(await http.post(CHAT, json=body)).json() for _ in range(2)]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert engine.stats().num_embeddings and engine.stats().num_features and engine.stats().num_cached_kv_blocks
    assert (await http.post("/reset_caches")).json() == {"status": "ok"}
    stats = engine.stats()
    assert (stats.num_embeddings, stats.num_features, stats.num_cached_kv_blocks) == (0, 0, 0)
    after = (await http.post(CHAT, json=body)).json()
    assert after["choices"] == first["choices"] and not after["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert "seesay_nonfinite_total 0.0" in (await http.get("/metrics")).text
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=create_app(engine, make_settings(api_keys=("k",)))),
        base_url="http://test",
        timeout=60,
    ) as keyed:
        assert (await keyed.post("/reset_caches")).status_code == 401
        assert (await keyed.post("/reset_caches", headers={"x-api-key": "k"})).status_code == 200


def test_strangers_make_no_labels(server: LiveServer) -> None:
    httpx.get(f"{server.url}/some/where?x=1", timeout=60)
    assert not any("some" in name for name in read_metrics(server))


async def test_openapi_has_every_route_and_model(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert {
        "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/health",
        "/version", "/metrics", "/reset_caches", "/sleep", "/wake_up", "/is_sleeping", "/update_weights",
        "/terminate",
    } <= set(document["paths"])  # fmt: skip
    components = document["components"]["schemas"]
    assert {"ChatCompletion", "ChatCompletionChunk", "ResponseEvent", "ErrorResponse", "ChatMessage"} <= set(components)
    referred = set()

    def walk(node: object) -> None:
        if isinstance(node, dict):
            if isinstance(reference := node.get("$ref"), str):
                referred.add(reference.removeprefix("#/components/schemas/"))
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(document)
    assert referred <= set(components)
    for path in document["paths"].values():
        assert not any("422" in operation["responses"] for operation in path.values())
    assert "text/html" in (await http.get("/")).headers["content-type"]


def test_importing_serving_imports_no_torch() -> None:
    code = (
        "import sys, seesay.serving as s; heavy = {'torch', 'transformers'}; assert not heavy & set(sys.modules);"
        "assert 'fastapi' not in sys.modules; s.create_app; s.run_server; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())})


SERVE = """
import sys
from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.serving import ServerSettings, run_server
with AsyncEngine(sys.argv[1], backend_config=EngineConfig(device_type="cpu", session_len=4096)) as engine:
    run_server(engine, ServerSettings(host="127.0.0.1", port=int(sys.argv[2]), log_level="INFO", drain_timeout_s=120))
print("drained")
"""


def test_sigterm_lets_answers_finish(tiny_checkpoint: Callable[[str], Path], unused_tcp_port: int) -> None:
    command = [sys.executable, "-c", SERVE, str(tiny_checkpoint("qwen2_5_vl")), str(unused_tcp_port)]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
    with forked():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    url = f"http://127.0.0.1:{unused_tcp_port}"
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "running on" in line:
                break
        else:
            pytest.fail("the server does not start")
        rest: list[str] = []
        reader = threading.Thread(target=lambda: rest.extend(process.stderr or ()))
        reader.start()
        body = {
            "messages": [{"role": "user", "content": "a secret"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 300,
            "ignore_eos": True,
        }
        with httpx.Client(timeout=60) as client, client.stream("POST", f"{url}{CHAT}", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            text = "\n".join(lines)
        assert text.rstrip().endswith("data: [DONE]") and '"completion_tokens":300' in text
        assert process.wait(60) == 0
        reader.join(60)
        assert process.stdout is not None and "drained" in process.stdout.read()
        assert any(f"POST {CHAT} 200" in line for line in rest), rest
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")
def test_https(engine: AsyncEngine, tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", key, "-out", certificate, "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    with serve(engine, make_settings(ssl_certfile=certificate, ssl_keyfile=key)) as server:
        context = ssl.create_default_context(cafile=certificate)
        url = server.url.replace("http://", "https://")
        assert httpx.get(f"{url}/health", verify=context, timeout=60).json()["status"] == "ok"
    for bad in (str(tmp_path / "missing.pem"), key):
        settings = make_settings(ssl_certfile=bad, ssl_keyfile=key)
        with pytest.raises(ConfigError, match="ssl_certfile"):
            DrainingServer.make(create_app(engine, settings), settings)
