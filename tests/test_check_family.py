"""`python -m seesay.vl.check_family`: the contract of families, for those in other packages, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vl.test_plugins import rename

from seesay.contract.command import main

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]

FAULTY = """
import numpy as np
from seesay.errors import RequestError
from seesay.values import Expansion
from seesay.vl.families.internvl import InternVL


class Faulty(InternVL):
    architectures = ("FaultyForConditionalGeneration",)

{fault}
"""
FAULTS = {
    "keys follow options": """
    def media_key(self, modality, options):
        return super().media_key(modality, {})
""",
    "rows fill their places": """
    def expand(self, modality, measures):
        found = super().expand(modality, measures)
        last = int(np.flatnonzero(found.takes_embedding)[-1])
        kept = np.arange(len(found.token_ids)) != last
        return Expansion(token_ids=found.token_ids[kept], takes_embedding=found.takes_embedding[kept])
""",
    "options are refused by name": """
    def resolve_options(self, modality, options):
        return {name: value for name, value in options.items() if name in self.options[modality]}
""",
    "hostile sizes are bounded": """
    def measure(self, modality, size, options):
        if size.height > 10_000:
            raise ValueError("too high")
        return super().measure(modality, size, options)
""",
    "largest input is the largest": """
    def largest_size(self):
        return 5, 5
""",
    "every tensor has one owner": """
    weights = InternVL.weights.__class__(decoder=InternVL.weights.decoder, tower={"vision_tower.": ""})
""",
}


def read(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What was printed: the outcome of each check."""
    lines = capsys.readouterr().out.splitlines()
    return {line[8:].partition(":")[0]: line[:8].strip() for line in lines}


@pytest.mark.parametrize(("name", "family"), [("llama", "text"), ("llava", "LlavaForConditionalGeneration")])
def test_a_family_that_holds_the_contract(
    name: str, family: str, tiny_checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([family, "--checkpoint", str(tiny_checkpoint(name))]) == 0
    outcomes = read(capsys)
    assert set(outcomes.values()) == {"ok"}, outcomes
    assert {"batched equal alone", "chunked and cached equal alone", "greedy tokens equal generate"} <= outcomes.keys()
    assert ("keys follow options" in outcomes) == (name == "llava")


@pytest.mark.parametrize("check", FAULTS)
def test_a_fault_is_found(
    check: str,
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers are left out, but for the fault that a prompt shows."""
    if check != "rows fill their places":
        monkeypatch.setattr("seesay.contract.engine_checks.Answers", lambda *_: 1 / 0)
    folder = rename(tiny_checkpoint("internvl"), tmp_path / "model", "FaultyForConditionalGeneration")
    (tmp_path / "faulty.py").write_text(FAULTY.replace("{fault}", FAULTS[check]))
    assert main(["faulty", "--plugin", str(tmp_path / "faulty.py"), "--checkpoint", str(folder)]) == 1
    outcomes = read(capsys)
    faults = {title for title, outcome in outcomes.items() if outcome == "FAULT"}
    assert check in faults, outcomes
    assert "every prompt is answered" in faults, outcomes


def test_what_a_family_declares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a checkpoint."""
    assert main(["qwen2_vl"]) == 0
    assert read(capsys) == {"Qwen2VL declares what it must": "ok", "all other checks": "skipped"}
    half = "from seesay.vl.family import Family\nclass Half(Family):\n    architectures = ('Half',)\n"
    (tmp_path / "half.py").write_text(half)
    assert main(["Half", "--plugin", str(tmp_path / "half.py")]) == 1
    assert "FAULT   Half declares what it must: it does not have chain_frames, expand" in capsys.readouterr().out


TWO = """
from seesay.vl.families.internvl import InternVL
from seesay.vl.text_family import TextFamily


class Words(TextFamily):
    architectures = ("WordsForCausalLM",)


class Pictures(InternVL):
    architectures = ("PicturesForConditionalGeneration",)
"""


def test_several_families_of_a_file(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A class has a name of its own. A file of a user's stands before one of ours with the same name."""
    file, folder = tmp_path / "llava.py", rename(tiny_checkpoint("llama"), tmp_path / "model", "WordsForCausalLM")
    file.write_text(TWO)
    both = {f"{name} declares what it must": "ok" for name in ("Words", "Pictures")}
    assert main(["llava", "--plugin", str(file)]) == 0
    assert read(capsys) == {**both, "all other checks": "skipped"}
    assert main(["Words", "--plugin", str(file)]) == 0
    assert read(capsys) == {"Words declares what it must": "ok", "all other checks": "skipped"}
    assert main(["Pictures", "--plugin", str(file), "--checkpoint", str(folder)]) == 1
    assert "is a WordsForCausalLM: its family is llava (Words)" in capsys.readouterr().err


def test_a_checkpoint_of_another_family(
    tiny_checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["llava", "--checkpoint", str(tiny_checkpoint("llama"))]) == 1
    assert "is a LlamaForCausalLM: its family is text (LlamaLike)" in capsys.readouterr().err
    assert main(["no_such_family"]) == 1
    assert "there is no family 'no_such_family': `seesay list` shows all" in capsys.readouterr().err
    assert main(["llava", "--plugin", "no_such_file.py"]) == 1
    assert "error: --plugin=no_such_file.py: there is no such file" in capsys.readouterr().err
