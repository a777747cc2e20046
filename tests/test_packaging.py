"""What is installed: the extras are those that something uses, and what lacks one says which in one line."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import seesay
from seesay.commands import check_env
from seesay.install_command import install_command

PACKAGE = Path(seesay.__file__).parent
PROJECT = Path(__file__).parents[1] / "pyproject.toml"
EXTRAS = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
CLIP = PACKAGE / "ui" / "examples" / "motion.mp4"
MODULES = {
    "opentelemetry-sdk": "opentelemetry.sdk",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
}
USED = ("serve", "ui", "video", "timm", "grammar", "documents", "otel")


def packages_of(extra: str) -> list[str]:
    """Names of the packages that an extra adds itself."""
    names = [re.split(r"[^\w-]", requirement)[0] for requirement in EXTRAS[extra]]
    return [name for name in names if name != "seesay"]


def module_of(package: str) -> str:
    return MODULES.get(package, package.replace("-", "_"))


def imported_modules(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found


def test_extras_are_used() -> None:
    assert set(EXTRAS) == {*USED, "all", "bench", "docs", "dev", "ray", "lm-eval", "lmms-eval"}
    assert EXTRAS["all"] == [f"seesay[{','.join(USED)}]"]
    importlib.import_module("seesay.serving.http.http_protocol")
    assert "httptools" in sys.modules, "it is used through uvicorn's protocol"
    importlib.import_module("starlette.formparsers")
    assert "python_multipart" in sys.modules, "it is used through Starlette's forms"
    in_package = imported_modules(PACKAGE) | {"httptools", "python_multipart"}
    for extra in (*USED, "bench", "ray", "lm-eval"):
        for package in packages_of(extra):
            assert module_of(package).partition(".")[0] in in_package, f"{package} of [{extra}] is imported nowhere"


def test_check_env_knows_the_extras() -> None:
    assert {extra: list(names) for extra, names in check_env._EXTRAS.items()} == {
        extra: packages_of(extra) for extra in USED
    }


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def run_without(extras: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code where the packages of `extras` cannot be imported."""
    hidden = [module_of(name) for extra in extras for name in packages_of(extra)]
    hidden += ["starlette"] if "serve" in extras else []
    hidden += ["decord"] if "video" in extras else []  # which the tests compare with
    lines = f"import sys, json\nsys.modules.update(dict.fromkeys(json.loads({json.dumps(hidden)!r})))\n{code}"
    return subprocess.run([sys.executable, "-c", lines], check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("argv", "extra"),
    [
        (["serve", "api_server"], "serve"),
        (["serve", "api_client"], "serve"),
        (["serve", "proxy"], "serve"),
        (["batch", "in.jsonl", "out.jsonl"], "serve"),
        (["serve", "gradio"], "ui"),
        (["serve", "gradio", "http://localhost:1"], "ui"),
        (["chat", "--video", "CLIP", "--prompt", "what moves?"], "video"),
    ],
    ids=str,
)
def test_a_command_names_the_extra_it_lacks(argv: list[str], extra: str) -> None:
    argv = [str(CLIP) if word == "CLIP" else word for word in argv]
    done = run_without(USED, f"from seesay.cli import main; sys.exit(main({argv!r}))")
    [line] = [line for line in done.stderr.splitlines() if "pip install" in line]
    assert done.returncode == 1 and line.endswith(install_command(extra)), done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 3, done.stderr


@pytest.mark.parametrize(
    ("missing", "code", "extra"),
    [
        (USED, "import seesay; seesay.serve(server_port=0)", "serve"),
        (USED, "import seesay; seesay.client()", "serve"),
        (USED, "import seesay; seesay.APIClient()", "serve"),
        (USED, "from seesay.serving import create_app", "serve"),
        (USED, "from seesay.serving import run_server", "serve"),
        (USED, "from seesay.ui import run_local; run_local()", "ui"),
        (("ui",), "from seesay.ui import run_local; run_local()", "ui"),
        (USED, "import seesay; seesay.load_video('CLIP')", "video"),
        (USED, "import seesay; seesay.load_audio('CLIP')", "video"),
        (("ray",), "from seesay.serving.ray_app import build_app; build_app({})", "ray"),
        (("ray",), "from seesay.serving.ray_data import answer_rows; answer_rows(None, prompt=str)", "ray"),
        (("otel",), "from seesay.serving.tracing import open_tracing; open_tracing('http://a:1', service='x')", "otel"),
    ],
    ids=str,
)
def test_a_function_names_the_extra_it_lacks(missing: tuple[str, ...], code: str, extra: str) -> None:
    guarded = f"try:\n    {code.replace('CLIP', str(CLIP))}\nexcept ImportError as error: print(error)"
    done = run_without(missing, guarded)
    assert done.stdout.strip().endswith(install_command(extra)), (done.stdout, done.stderr)


@pytest.mark.slow
def test_a_clip_in_a_batch_without_the_extra() -> None:
    """The clip's answer says what is missing; its sibling is answered; nothing is logged as a failure of ours."""
    code = (
        "from seesay import pipeline\n"
        f"with pipeline() as pipe:\n    answers = pipe([('what?', {str(CLIP)!r}), 'Calculate 3 + 4.'])\n"
        "print([answer.finish_reason for answer in answers], answers[0].text)"
    )
    done = run_without(("video",), code)
    assert done.stdout.strip() == (
        f"['error', 'stop'] reading a video requires the package 'av': {install_command('video')}"
    ), (done.stdout, done.stderr)
    assert done.stderr == ""


def test_an_engine_in_a_thread_needs_no_link() -> None:
    """The packages of the link are imported for an engine process alone, which says when they are missing."""
    code = """
import sys
sys.modules.update(msgspec=None, zmq=None)
from pathlib import Path
from seesay import EngineConfig, VisionConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError
with AsyncEngine(backend_config=EngineConfig(device_type="cpu")) as engine:
    print(engine.fault)
try:
    AsyncEngine(backend_config=EngineConfig(device_type="cpu", engine_process=True))
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    first, second = done.stdout.splitlines()
    assert first == "None" and second.startswith("engine_process=True: needs the packages msgspec and pyzmq")
