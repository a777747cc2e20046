"""The example of a Hugging Face Space runs as it is."""

from __future__ import annotations

import base64
import contextlib
import contextvars
import importlib.util
import io
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from seesay.demo import CHECKPOINT
from seesay.demo.scenes import sample_scene
from seesay.serving.client import APIError
from seesay.ui.answering import Answering

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "huggingface_space"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"space_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_space_runs(run_space: Callable[..., contextlib.AbstractContextManager[str]]) -> None:
    with run_space() as url:
        response = httpx.get(url, timeout=60, trust_env=False)
        assert response.status_code == 200 and "seesay \u00b7 seesay-demo" in response.text


def test_header_names_what_is_there() -> None:
    header = (FOLDER / "README.md").read_text().split("---")[1]
    fields = dict(line.split(": ", 1) for line in header.strip().splitlines())
    assert fields["sdk"] == "gradio" and (FOLDER / fields["app_file"]).is_file()


def test_requirements_are_what_the_package_needs_and_pip_can_resolve() -> None:
    lines = (FOLDER / "requirements.txt").read_text().splitlines()
    listed = {line for line in lines if not line.startswith("#")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["serve"], *extras["ui"], *extras["video"]]
    assert {line for line in needed if not line.startswith("seesay")} == listed - {"spaces>=0.40"}
    assert not any(line.startswith("seesay") for line in listed), "no index has it"


def test_the_line_to_try_it_names_files_that_are_there() -> None:
    readme = (FOLDER / "README.md").read_text()
    commands = readme.partition("```bash\n")[2].partition("```")[0].splitlines()
    folder = ROOT / commands[0].removeprefix("cd ")
    assert folder == FOLDER and commands[1].split()[:4] == ["pip", "install", "-r", "requirements.txt"]
    assert (folder / commands[1].split()[4] / "pyproject.toml").is_file(), "the package itself"
    assert (folder / commands[2].split()[1]).is_file()


# --- the package, where no index has it -----------------------------------------------------------------------------


def make_wheel(folder: Path, package: str, version: str) -> None:
    info = f"{package}-{version}.dist-info"
    files = {
        f"{package}/__init__.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nRequires-Dist: nothing\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{package}-{version}-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)


def provide(folder: Path, target: Path, source: str, package: str = "space_probe") -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r}); from own_package import provide; from pathlib import Path\n"
        f"provide({package!r}, folder=Path({str(folder)!r}), source={source!r}, target=Path({str(target)!r}))\n"
        f"import {package}; print({package}.__file__)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_a_wheel_beside_the_app_is_installed(tmp_path: Path) -> None:
    make_wheel(tmp_path, "space_probe", "1.0")
    done = provide(tmp_path, tmp_path / "target", "no-such-source-anywhere")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "target" / "space_probe" / "__init__.py")


def test_without_a_wheel_the_source_is_installed(tmp_path: Path) -> None:
    make_wheel(tmp_path, "space_probe", "2.0")
    (tmp_path / "empty").mkdir()
    source = str(tmp_path / "space_probe-2.0-py3-none-any.whl")
    done = provide(tmp_path / "empty", tmp_path / "target", source)
    assert done.returncode == 0 and f"installing space_probe from {source}" in done.stdout, done.stderr


def test_what_cannot_be_installed_says_what_to_do(tmp_path: Path) -> None:
    done = provide(tmp_path, tmp_path / "target", str(tmp_path / "missing.whl"))
    assert done.returncode == 1 and "set the variable SEESAY_SOURCE" in done.stderr and "Traceback" not in done.stderr


def test_a_package_that_is_there_is_left_alone(tmp_path: Path) -> None:
    done = provide(tmp_path, tmp_path / "target", "no-such-source", package="seesay")
    assert done.returncode == 0 and "installing" not in done.stdout and not (tmp_path / "target").exists()


# --- ZeroGPU --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zero_gpu() -> Iterator[Any]:
    """The module, with the real package `spaces`, whose decorator does nothing on other hardware."""
    pytest.importorskip("gradio")
    if importlib.util.find_spec("spaces") is None:
        pytest.skip("not installed: spaces")
    if not (CHECKPOINT / "config.json").is_file():
        pytest.skip("the built-in checkpoint is not here")
    module = load("zero_gpu")
    yield module
    for engine in module._engines.values():
        engine.close()


def ask(zero_gpu: Any, content: Any, **options: Any) -> list[dict[str, Any]]:
    client = zero_gpu.ZeroGPUClient("seesay-demo")
    fields = {"temperature": 0.0, "top_p": 0.8, "top_k": None, "max_tokens": 64, "stream": True, **options}
    messages = [{"role": "user", "content": content}]
    return list(client.chat_completions_v1(model="seesay-demo", messages=messages, **fields))


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"])


def test_an_answer_on_zero_gpu_is_what_a_server_would_send(zero_gpu: Any) -> None:
    scene, file = sample_scene(3), io.BytesIO()
    scene.images[0].save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": scene.turns[0][0]}]
    chunks = ask(zero_gpu, parts)
    assert text_of(chunks) == scene.turns[0][1] and len(chunks) > 3, "it streams"
    last = chunks[-1]
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["prompt_tokens_details"]["vision_tokens"] == last["seesay"]["media"][0]["num_tokens"] == 81
    assert last["seesay"]["media"][0]["modality"] == "image" and last["seesay"]["timings"]["total_s"] > 0
    assert len(zero_gpu._engines) == 1
    assert ask(zero_gpu, "Calculate 3 + 4.", max_tokens=2)[-1]["choices"][0]["finish_reason"] == "length"
    assert len(zero_gpu._engines) == 1, "a process that is used again has its model"


def test_markers_that_visitors_type_are_text_and_local_files_are_refused(zero_gpu: Any) -> None:
    assert text_of(ask(zero_gpu, "<IMAGE_TOKEN> Calculate 3 + 4.", max_tokens=4))
    with pytest.raises(APIError, match="local paths are not read here"):
        ask(zero_gpu, [{"type": "image_url", "image_url": {"url": "/etc/hostname"}}])


def test_the_decorated_function_is_one_that_spaces_streams(zero_gpu: Any) -> None:
    import inspect

    assert inspect.isgeneratorfunction(zero_gpu.answer), "spaces tells streams by this"
    assert zero_gpu.DURATION_S == 60


def test_the_webui_runs_with_it(
    zero_gpu: Any, run_space: Callable[..., contextlib.AbstractContextManager[str]]
) -> None:
    code = "from zero_gpu import run; run('seesay-demo', port=PORT, server_name='127.0.0.1')"
    with run_space(code) as url:
        assert "seesay \u00b7 seesay-demo" in httpx.get(url, timeout=60, trust_env=False).text


def test_answers_are_asked_for_in_the_visitors_context() -> None:
    """spaces finds the visitor's request, and so his quota, in a context variable."""
    visitor: contextvars.ContextVar[str] = contextvars.ContextVar("visitor", default="nobody")

    class Client:
        @property
        def available_models(self) -> list[str]:
            return ["a"]

        def live_address(self) -> None:
            return None

        def chat_completions_v1(self, *args: Any, **request: Any) -> Generator[dict[str, Any], None, None]:
            yield {"choices": [{"delta": {"content": visitor.get()}, "finish_reason": "stop"}]}

    visitor.set("somebody")
    assert "".join(Answering(Client(), {}).pieces()) == "somebody"
