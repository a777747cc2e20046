"""`examples/my_family`: a package that adds a model to seesay. It is installed as users do it, and served."""

from __future__ import annotations

import base64
import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from seesay import EngineConfig, GenerationConfig, pipeline
from seesay.contract.command import main as check_family
from seesay.engine.opened_model import open_model
from seesay.errors import CheckpointError
from seesay.vl import plugins

EXAMPLE = Path(__file__).parents[1] / "examples" / "my_family"
NEW_TOKENS = 12
PICTURE = Image.fromarray(np.random.default_rng(3).integers(0, 256, (40, 110, 3), dtype=np.uint8))
QUESTION = ("what is this?", PICTURE)


def as_content(**options: str) -> list[dict[str, Any]]:
    """The question as the content of a message, with options of the picture."""
    buffer = io.BytesIO()
    PICTURE.save(buffer, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    picture = {"type": "image_url", "image_url": {"url": url, **options}}
    return [picture, {"type": "text", "text": QUESTION[0]}]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package is installed into, by pip, without a network."""
    folder = tmp_path_factory.mktemp("my_family")
    source = shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "site"), str(source)]
    subprocess.run(command, check=True, timeout=300)
    return folder / "site"


@pytest.fixture(scope="module")
def installed(site: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        plugins.load_packages.cache_clear()
        yield
    plugins.load_packages.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_family"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def checkpoint(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("my_family") / "tiny"
    importlib.import_module("my_family.make_checkpoint").make_checkpoint(folder)
    return folder


@cache
def run_oracle(path: Path, text: str) -> list[int]:
    """Greedy tokens of Transformers' OLMo 2, which the decoder is, behind a rendered prompt with the rows that the
    tower makes of `PICTURE`: three tiles."""
    from safetensors.torch import load_file
    from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedTokenizerFast

    from seesay.encoders.towers.weights import finish_layers

    tensors = load_file(path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())["text_config"]
    model = Olmo2ForCausalLM(Olmo2Config(**config)).eval()
    model.load_state_dict({name: tensor for name, tensor in tensors.items() if not name.startswith("vision.")})
    module: Any = importlib.import_module("my_family.tower")
    tower = module.Tower(28, 7, 24, 2, out_size=config["hidden_size"])
    own = {name.removeprefix("vision."): each for name, each in tensors.items() if name.startswith("vision.")}
    for name, tensor in own.items():
        tower.get_parameter(name).data = tensor
    pixels = np.asarray(PICTURE.resize((84, 28), Image.Resampling.BICUBIC), dtype=np.float32) / 255
    pixels = (pixels - np.array([0.5, 0.45, 0.4], np.float32)) / np.array([0.3, 0.28, 0.27], np.float32)
    tiles = pixels.reshape(28, 3, 28, 3).transpose(1, 0, 2, 3)
    patches = tiles.reshape(3, 4, 7, 4, 7, 3).transpose(0, 1, 3, 5, 2, 4).reshape(3, 16, 147)
    finish_layers(tower)
    with torch.no_grad():
        rows = tower(torch.from_numpy(np.ascontiguousarray(patches))).flatten(0, 1)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
        ids = torch.tensor(tokenizer(text)["input_ids"])
        embeddings = model.get_input_embeddings()(ids).clone()
        embeddings[ids == tokenizer.convert_tokens_to_ids("<image>")] = rows
        count = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}
        made = model.generate(inputs_embeds=embeddings[None], do_sample=False, **count)
    answer: list[int] = made[0].tolist()
    return answer


def test_it_is_found(site: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-m", "seesay", "list"], env=environment, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    found = lines.index("model families of package my-family 0.1")
    assert lines[found + 1].split() == ["my_model", "text,", "image", "MyModelForConditionalGeneration"]


def test_it_imports_no_torch(site: Path) -> None:
    code = "import sys\nfrom seesay.vl.registry import open_registry\nplugin, = open_registry().plugins\n"
    code += "print(plugin.origin, 'torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "package my-family 0.1 False"


def test_it_answers_as_the_oracle(checkpoint: Path) -> None:
    """Alone, and in chunks beside others and from the cache."""
    config = EngineConfig(device_type="cpu", engine_process=False, max_prefill_token_num=16, block_size=16)
    options = GenerationConfig(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    with pipeline(str(checkpoint), config) as pipe:
        alone = pipe(QUESTION, gen_config=options)
        *others, again = pipe(["hello", ("a", [PICTURE, PICTURE]), QUESTION], gen_config=options)
        [low] = pipe([[{"role": "user", "content": as_content(detail="low")}]], gen_config=options)
    rendered = "<|user|>" + "<image>" * 48 + QUESTION[0] + "<|end|><|assistant|>"
    assert alone.token_ids == run_oracle(checkpoint, rendered)
    assert again.token_ids == alone.token_ids and again.usage is not None and again.usage.cached_tokens >= 48
    assert all(len(each.token_ids) == NEW_TOKENS for each in others)
    assert low.input_token_len == alone.input_token_len - 32


def test_it_is_served(site: Path, checkpoint: Path, unused_tcp_port_factory: Callable[[], int]) -> None:
    """By a server of several processes, all of which find the package."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)])}
    port = unused_tcp_port_factory()
    command = [sys.executable, "-m", "seesay", "serve", "api_server", str(checkpoint), "--frontends", "2"]
    command += ["--device", "cpu", "--server-name", "127.0.0.1", "--server-port", str(port)]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    try:
        lines: list[str] = []
        while not lines or "ready after" not in lines[-1]:
            lines.append(server.stdout.readline())
            assert lines[-1], "".join(lines)
        content = as_content()
        body = {
            "model": checkpoint.name, "messages": [{"role": "user", "content": content}], "max_tokens": NEW_TOKENS,
            "temperature": 0, "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        answers = [
            httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=60).json() for _ in range(4)
        ]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
        server.stdout.close()
    rendered = "<|user|>" + "<image>" * 48 + QUESTION[0] + "<|end|><|assistant|>"
    for answer in answers:
        assert answer["choices"][0]["token_ids"] == run_oracle(checkpoint, rendered), answer


def test_it_holds_the_contract(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_family(["my_model", "--checkpoint", str(checkpoint)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("ok")] == [
        line for line in lines if line.startswith("skipped greedy tokens equal generate: Transformers cannot run it: ")
    ]
    assert len(lines) >= 12


@pytest.mark.parametrize(
    ("field", "value"),
    [("image_size", None), ("patch_size", 0), ("max_tiles", "4"), ("num_layers", 1 << 40), ("patch_size", 5)],
)
def test_damaged_configurations_are_named(field: str, value: object, checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "damaged")
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"][field] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=field):
        open_model(folder, EngineConfig())


def test_the_module_is_that_of_the_page() -> None:
    """Files that the README names are there."""
    for name in re.findall(r"^\| `([\w/.]+)` \|", (EXAMPLE / "README.md").read_text(), re.MULTILINE):
        assert (EXAMPLE / name).is_file(), name
