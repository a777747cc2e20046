"""Prints docs/architectures.md: what becomes of every architecture of Transformers for texts, or texts with pictures.

python tests/support/architectures.py > docs/architectures.md

Each is opened with its default configuration, as a folder with nothing but a config.json: a family takes it, or its
modules are probed without weights. Takes some minutes.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from enrolment import AUDIO_MODULES, MODULES, VISION_MODULES
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.vl.modules.module_family import ModuleTextFamily
from seesay.vl.registry import find_model, list_layouts, open_registry

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
RUNS, TESTED, UNDECIDED = "through modules", "through modules, compared in the tests", "not decided"
_HEAD = """\
# Architectures of Transformers

Made by `python tests/support/architectures.py > docs/architectures.md`, with Transformers {version}; a test fails when
Transformers has others.

Every architecture of Transformers for text (`AutoModelForCausalLM`), or for text with pictures
(`AutoModelForImageTextToText`), by what becomes of it here. A *family* is written here, and [models.md](models.md) says
what it has. *Through modules* means Transformers' own modules: the text runs, and a model with pictures is compared
with the whole model when it is opened, and refused where they differ. The reasons of the others are those of their
default configuration: some models of the same architecture have layers without the state that is named. Where that
configuration makes no model, this is not decided. Modules run plain weights, and in CUDA graphs unless they look at the
device, which is tried when a model is opened.

| architecture | `model_type` | becomes |
| --- | --- | --- |
"""
_TESTED = {*MODULES.values(), *VISION_MODULES.values(), *AUDIO_MODULES.values()}


def list_architectures() -> list[tuple[str, str]]:
    """Return the architectures of both maps with the first `model_type` of each, by name."""
    found: dict[str, str] = {}
    for names in (
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    ):
        for kind, each in names.items():
            for architecture in (each,) if isinstance(each, str) else each:
                found.setdefault(architecture, kind)
    return sorted(found.items())


def describe(architecture: str, kind: str) -> str:
    """Return what becomes of an architecture."""
    if families := list_layouts().get(architecture):
        return "family " + ", ".join(dict.fromkeys(family.__module__.rpartition(".")[2] for family in families))
    if architecture in _TESTED:
        return TESTED
    with tempfile.TemporaryDirectory() as folder:
        try:
            config = CONFIG_MAPPING[kind]().to_dict()
            (Path(folder) / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
            family, checkpoint = find_model(Checkpoint.load_config(folder), open_registry())
            assert issubclass(family, ModuleTextFamily), family
            family.build_modules(checkpoint)
        except CheckpointError as error:
            return _shorten(str(error), folder)
        except Exception:  # a default configuration that its own class refuses
            return UNDECIDED
    return RUNS


def _shorten(message: str, folder: str) -> str:
    """Return the reason in an error."""
    reason = message.replace(f"{folder}/", "").replace(f"{folder}: ", "")
    reason = re.sub(r"^\S+ does not run through Transformers' modules: ", "", reason)
    reason = re.sub(r"; (nearest: |text models of type |docs/models\.md).*$", "", reason, flags=re.DOTALL)
    if reason.startswith(("its modules cannot be made", "config.json: ")):
        return UNDECIDED
    return "no: " + re.sub(r"its modules fail in a trial .*", "its modules fail in a trial with a few tokens", reason)


def make_rows() -> Iterator[str]:
    for architecture, kind in list_architectures():
        yield f"| `{architecture}` | `{kind}` | {describe(architecture, kind)} |\n"


if __name__ == "__main__":
    import transformers

    with redirect_stdout(sys.stderr):
        made = "".join(make_rows())
    sys.stdout.write(_HEAD.format(version=transformers.__version__) + made)
