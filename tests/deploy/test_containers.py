"""The images and what runs them: linted, and their commands and health checks tried."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from echo_node import echo_nodes
from ports import find_port
from shell_lines import check_shell, parse_seesay, read_text

from tools.dockerfile_steps import make_script, needed_stages, read_stages

ROOT = Path(__file__).parents[2]
DOCKERFILE = read_text(ROOT / "Dockerfile")
DEPLOY = ROOT / "deploy"


def test_dockerfile_is_clean() -> None:
    command = shutil.which("hadolint")
    if command is None:
        pytest.skip("hadolint is not here")
    done = subprocess.run([command, str(ROOT / "Dockerfile")], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def instructions(target: str, word: str) -> list[str]:
    stages = read_stages(DOCKERFILE)
    ancestors = [name for name in needed_stages(stages, target) if name in ("base", target)]
    return [rest for name in ancestors for kind, rest in stages[name].steps if kind == word]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_image_runs_server_without_root(target: str) -> None:
    assert instructions(target, "USER") == ["10001"] and "--uid 10001" in instructions(target, "RUN")[0]
    command = json.loads(instructions(target, "ENTRYPOINT")[-1]) + json.loads(instructions(target, "CMD")[-1])
    port = parse_seesay(command[1:]).server_port
    assert command[0] == "seesay" and instructions(target, "EXPOSE") == [str(port)]
    assert f"127.0.0.1:{port}/health" in instructions(target, "HEALTHCHECK")[0]
    script = make_script(DOCKERFILE, target, Path("/tmp/image"), {"TORCH_INDEX": "https://example.com/simple"})
    check_shell(script)
    assert "seesay-*.whl" in script and ("https://example.com/simple" in script) == (target == "cpu")
    assert not re.search(r"(?<!/tmp/image)/(?:opt|wheels|source)\b", script), "a step leaves the folder"


def run_check(command: list[str], port: int, url: str) -> int:
    assert command[0] == "python"
    words = [sys.executable, *(word.replace(f"127.0.0.1:{port}", url) for word in command[1:])]
    return subprocess.run(words, check=False, capture_output=True, timeout=60).returncode


def test_health_check_follows_server() -> None:
    command = json.loads(instructions("cpu", "HEALTHCHECK")[0].partition("CMD ")[2])
    with echo_nodes(1) as nodes:
        url = nodes[0].url.removeprefix("http://")
        assert run_check(command, 23333, url) == 0
        subprocess.run([sys.executable, "-c", SET_HEALTH, nodes[0].url], check=True)
        assert run_check(command, 23333, url) != 0
    assert run_check(command, 23333, f"127.0.0.1:{find_port()}") != 0


SET_HEALTH = "import httpx, sys; httpx.post(sys.argv[1] + '/set_health', json={'status': 503}).raise_for_status()"


def test_context_is_the_package_alone() -> None:
    """All that the image copies is in the context, and nothing else but what another image takes."""
    ignored = [line for line in read_text(ROOT / ".dockerignore").splitlines() if not line.startswith("#")]
    assert ignored[0] == "*"
    copied = [rest.split()[:-1] for rest in (*_copies("wheel"),)]
    there = {line[1:] for line in ignored if line.startswith("!")}
    assert {name for names in copied for name in names} == there - {"Ascend-cann-*.run"}


def _copies(stage: str) -> list[str]:
    return [rest for word, rest in read_stages(DOCKERFILE)[stage].steps if word == "COPY"]


def read_compose(*names: str) -> dict[str, Any]:
    """The services of compose files, with later ones over earlier ones."""
    services: dict[str, Any] = {}
    for name in names:
        for service, given in yaml.safe_load(read_text(DEPLOY / name))["services"].items():
            services[service] = {**services.get(service, {}), **given}
    return services


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_compose_file_is_valid(name: str) -> None:
    compose = pytest.importorskip("compose_spec")
    compose.PyCompose.from_yaml(read_text(DEPLOY / name).replace("${MODEL:-seesay-demo}", "m")).validate()


def test_compose_commands_and_files() -> None:
    services = read_compose("compose.yaml", "compose.gpu.yaml")
    assert {*services} == {"server", "webui", "prometheus", "grafana"}
    server, webui = parse_seesay(services["server"]["command"]), parse_seesay(services["webui"]["command"])
    assert webui.model_path == f"http://server:{server.server_port}" and webui.server_name == "0.0.0.0"
    assert services["server"]["ports"] == [f"127.0.0.1:{server.server_port}:{server.server_port}"]
    assert services["webui"]["ports"] == [f"127.0.0.1:{webui.server_port}:{webui.server_port}"]
    assert services["webui"]["depends_on"]["server"] == {"condition": "service_healthy"}
    assert float(services["server"]["stop_grace_period"].rstrip("s")) > server.drain_timeout
    for service in services.values():
        assert "image" in service and not service["image"].endswith("latest")
        for volume in service.get("volumes", []):
            place = volume.partition(":")[0]
            assert not place.startswith(".") or (DEPLOY / place).exists(), f"{place} is not there"
    assert services["server"]["build"]["target"] in read_stages(DOCKERFILE)
    targets = yaml.safe_load(read_text(DEPLOY / "prometheus.yml"))["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"server:{server.server_port}"]
