"""Models whose code lies beside their weights: it runs with `trust_remote_code` alone, in all processes that need it.

The golden tests hold `enrolment.OWN_CODE` against Transformers in all ways of computing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import ask, make_conversations, parse
from safetensors.torch import load_file, save_file

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.opened_model import open_model
from seesay.errors import CheckpointError
from seesay.vl.families.text import LlamaLike
from seesay.vl.modules.module_family import ModuleTextFamily
from seesay.vl.modules.module_vision import ModuleVisionFamily

TRUSTING, PLAIN = EngineConfig(device_type="cpu", trust_remote_code=True), EngineConfig(device_type="cpu")
KINDS = (
    "AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoProcessor",
    "AutoImageProcessor", "AutoTokenizer",
)  # fmt: skip
FILES = ("config.json", "processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def edit(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def set_traps(folder: Path, target: Path, **changes: Any) -> tuple[Path, Path]:
    """Return a copy of a checkpoint in which every JSON file names code for everything, and the file which that code
    writes where it is run."""
    shutil.copytree(folder, target)
    sprung = target.parent / f"{target.name}-was-run"
    code = f"open({str(sprung)!r}, 'w').close()\n"
    code += "".join(f"class {kind}Trap: pass\n" for kind in KINDS)
    for file in ("trap", *(path.stem for path in target.glob("*.py"))):
        (target / f"{file}.py").write_text(code)
    auto_map: dict[str, Any] = {kind: f"trap.{kind}Trap" for kind in KINDS}
    auto_map["AutoTokenizer"] = [None, auto_map["AutoTokenizer"]]
    for name in FILES:
        if name in ("config.json", "tokenizer_config.json") or (target / name).exists():
            settings = json.loads((target / name).read_text())
            (target / name).write_text(json.dumps({**settings, "auto_map": auto_map}))
    edit(target, **changes)
    return target, sprung


@pytest.mark.parametrize("name", ["orbit", "orbit_vl"])
def test_code_is_refused_by_the_name_of_the_option(
    name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, sprung = set_traps(tiny_checkpoint(name), tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"Python in this folder \(trap\.py\), which would be executed") as caught:
        AsyncEngine(str(folder), backend_config=PLAIN)
    assert "trust_remote_code=True (--trust-remote-code)" in str(caught.value)
    edit(folder, architectures=None)
    with pytest.raises(CheckpointError, match=r"'AutoModelFor.*Trap' is neither one of ours"):
        open_model(folder, PLAIN)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="which would be executed"):
        open_model(folder, PLAIN)
    assert not sprung.exists()
    with pytest.raises(CheckpointError):
        open_model(folder, TRUSTING)
    assert sprung.exists(), "these are no traps"


@pytest.mark.parametrize("name", ["gpt_neox", "vipllava", "llama", "qwen2_vl"])
def test_known_models_run_without_the_code_beside_them(
    name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, sprung = set_traps(tiny_checkpoint(name), tmp_path / "model")
    with AsyncEngine(str(folder), backend_config=PLAIN) as engine:
        [output] = ask(engine, parse(["the game"], max_new_tokens=2, ignore_eos=True))
    assert output.error is None and not sprung.exists()


@pytest.mark.parametrize("name", ["gpt_neox", "llama"])
def test_known_models_come_before_code_that_may_run(
    name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, sprung = set_traps(tiny_checkpoint(name), tmp_path / "model")
    opened = open_model(folder, TRUSTING)
    assert opened.checkpoint.code is None
    assert type(opened.family) is (LlamaLike if name == "llama" else ModuleTextFamily)
    assert opened.checkpoint.hf_config().model_type == name and not sprung.exists()


def test_code_in_an_engine_process(tiny_checkpoint: Callable[[str], Path]) -> None:
    """It is run there, too."""
    requests = parse(make_conversations("orbit_vl"), max_new_tokens=6, ignore_eos=True)
    answers = []
    for is_process in (False, True):
        config = EngineConfig(device_type="cpu", trust_remote_code=True, engine_process=is_process)
        with AsyncEngine(str(tiny_checkpoint("orbit_vl")), backend_config=config) as engine:
            assert isinstance(engine.family, ModuleVisionFamily)
            outputs = ask(engine, requests)
        assert [output.error for output in outputs] == [None] * len(requests)
        answers.append([list(output.token_ids) for output in outputs])
    assert answers[0] == answers[1]


def test_new_weights_are_read_without_the_code_beside_them(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, sprung = set_traps(tiny_checkpoint("orbit"), tmp_path / "model")
    edit(folder, auto_map=json.loads((tiny_checkpoint("orbit") / "config.json").read_text())["auto_map"])
    tensors = load_file(folder / "model.safetensors")
    flipped = {name: tensor.flip(0).contiguous() for name, tensor in tensors.items()}
    save_file(flipped, folder / "model.safetensors", {"format": "pt"})
    requests = parse(["the game"], max_new_tokens=6, ignore_eos=True)
    with AsyncEngine(str(tiny_checkpoint("orbit")), backend_config=TRUSTING) as engine:
        before = list(ask(engine, requests)[0].token_ids)
        engine.update_weights(str(folder))
        assert list(ask(engine, requests)[0].token_ids) != before
    assert not sprung.exists()


_INTERFACE = "ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]"
_OUT = "output: torch.Tensor = self.out(found"
FAULTS: dict[str, tuple[tuple[str, str], str]] = {
    "package": (
        ("import torch", "import no_such_package_at_all"),
        r"modeling_orbit\.py: modeling_orbit\.OrbitForCausalLM cannot be loaded: ImportError: .*no_such_package_at_all",
    ),
    "class": (("class OrbitForCausalLM", "class Other"), "cannot be loaded: AttributeError: .*OrbitForCausalLM"),
    "attention": ((_INTERFACE, "ALL_ATTENTION_FUNCTIONS['sdpa']"), "0 of 3 layers attend through Transformers' inter"),
    "error": ((_OUT, f"raise ZeroDivisionError('oh')\n        {_OUT}"), "ZeroDivisionError: oh"),
    "tokens": (("torch.tanh(self.up(x))", "torch.tanh(self.up(x.cumsum(1)))"), "look at other tokens beside attention"),
}
"""What is changed in the model's code, and what is said of it."""


@pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS)
def test_code_that_cannot_run_says_why(
    change: tuple[str, str], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_checkpoint("orbit"), tmp_path / "model")
    source = (folder / "modeling_orbit.py").read_text()
    assert change[0] in source
    (folder / "modeling_orbit.py").write_text(source.replace(*change))
    with pytest.raises(CheckpointError, match=message) as caught:
        AsyncEngine(str(folder), backend_config=TRUSTING)
    assert str(caught.value).startswith(str(folder))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("modeling.Other.X", r"auto_map\.AutoModelForCausalLM must be 'file\.Class', got 'modeling\.Other\.X'"),
        ("../modeling_orbit.X", "must be 'file.Class'"),
        (["a.B"], "must be 'file.Class'"),
        ("them/theirs--modeling_theirs.X", r"modeling_theirs\.py: config\.json's auto_map names .* no such file here"),
    ],
)
def test_classes_that_are_not_in_the_folder(
    named: Any, message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_checkpoint("orbit"), tmp_path / "model")
    edit(folder, auto_map={"AutoConfig": "configuration_orbit.OrbitConfig", "AutoModelForCausalLM": named})
    with pytest.raises(CheckpointError, match=message):
        AsyncEngine(str(folder), backend_config=TRUSTING)
