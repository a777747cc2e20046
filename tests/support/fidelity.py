"""Prints docs/fidelity.md: what every family and layout is compared with, made of what the tests declare.

python tests/support/fidelity.py > docs/fidelity.md
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from enrolment import CHECKPOINTS, ENROLLED, MODULES, OWN_CODE, VISION_MODULES, Tiny

HERE = Path(__file__).parents[1]
SIBLINGS: Mapping[str, str] = {
    "baichuan": "LlamaForCausalLM",
    "baichuan2": "LlamaForCausalLM",
    "chatglm": "GlmForCausalLM",
    "deepseek_moe": "Qwen2MoeForCausalLM",
    "gpt_oss_mxfp4": "GptOssForCausalLM",
    "internlm": "LlamaForCausalLM",
    "internlm2": "LlamaForCausalLM",
    "internlm3": "LlamaForCausalLM",
    "minicpm": "GraniteForCausalLM",
    "qwen": "Qwen2ForCausalLM",
}
"""Of the checkpoints whose architecture Transformers does not have: the class of the equal model that is compared with
in its place (`enrolment.SIBLING`)."""
BY_CHOICE: Mapping[str, str] = {
    "glm4v": "pictures and videos may stand in one prompt, which Transformers refuses",
    "glm4v_moe": "pictures and videos may stand in one prompt, which Transformers refuses",
    "glm46v": "pictures and videos may stand in one prompt, which Transformers refuses",
    "nemotron_h_omni": (
        "pictures and videos may stand in one prompt, and videos of several sizes, which Transformers refuses; videos "
        "of a checkpoint that asks for their pruning are refused, which Transformers prunes"
    ),
    "internlm2": "dynamic rotary scaling follows the length of the prompt, in the published code that of each step",
    "qwen": "the NTK factor of the prompt holds for the whole answer",
    "phi3_longrope": "a text that grows beyond the trained length is computed again with the long factors",
    "phimoe": "texts beyond the trained length have the long factors, as in the published code; Transformers computes "
    "all with the short ones",
    "phi3_v": "a text that grows beyond the trained length is computed again with the long factors; the published code "
    "keeps the keys that it has",
    "minicpmv_4_5": "whether it thinks is the chat template's default; the published chat turns it off",
    "xcomposer2d5": "frames of a video are pictures; the published code joins them into one",
    "cogvlm2_video": "behind each frame stands its second; published, its number, which is that second as frames are "
    "taken once a second",
    "mllama": "tokens before the first picture see none, and the tower keeps the inputs of its layers, as in the "
    "published code; Transformers lets them see all, and keeps outputs",
    "molmo": "each of several pictures has its own places; the published processor gives all rows to the first",
}
"""Where seesay differs from a model's own class by choice, or the class was changed for the comparison."""
_HEAD = """\
# Fidelity

Made by `python tests/support/fidelity.py > docs/fidelity.md` of what the tests declare.

Every family is compared with other code that computes the same model, on tiny checkpoints with random weights in
float32: the ids of prompts, the pixels, the rows of the tower, positions and logits, and greedy answers alone, beside
each other, in chunks, from the prefix cache and after a pause. Prompts have no picture, one, and several, of odd sizes,
and videos where a family takes them.

What holds for all of them by choice:

* Pictures are turned upright by their EXIF data.
* Transparent parts of pictures are put on white, as all of these processors of Transformers do, but for
  DeepSeek-VL's, which refuse such pictures. Code that was published with weights mostly drops the alpha channel, and
  `transparency="drop"` does.

"""
_TRANSFORMERS = """\
## Compared with Transformers

CI takes the newest release. *Name* is the name of the checkpoint in the tests.

"""
_REFERENCES = """\
## Compared with a statement of the published code

Transformers has no class of these. `tests/reference` states what the published code computes; the numbers of that code
itself are below.

"""
_GOLDEN = """\
## Compared with numbers of the published code

`tests/golden` has numbers that the published code made of weights that are a formula of their names.

"""


HEARD = {"UltravoxModel": "ultravox"}
"""Modules of `tests/reference` that tests/engine/test_audio.py compares, by architecture."""


def print_page() -> Iterator[str]:
    """Yield the parts of the page."""
    references = find_references()
    own = {name: tiny for name, tiny in CHECKPOINTS.items() if reference_of(name, tiny, references) is None}
    yield _HEAD
    yield _TRANSFORMERS
    columns = ("name", "architecture", "takes", "class of Transformers", "differs by choice")
    yield _table(columns, (_describe(name, tiny) for name, tiny in own.items()))
    modules = [*MODULES.items(), *VISION_MODULES.items(), *OWN_CODE.items()]
    yield "\nThrough Transformers' modules, with attention over blocks of keys and values:\n\n"
    takes = dict.fromkeys((*VISION_MODULES, "orbit_vl"), "text, pictures")
    rows = ((name, kind, takes.get(name, "text"), _own_class(name, kind), "") for name, kind in modules)
    yield _table(columns, rows)
    yield "\n" + _REFERENCES
    stated = ((name, tiny, reference_of(name, tiny, references)) for name, tiny in CHECKPOINTS.items())
    rows = (
        (name, _architecture(tiny), _takes(name), f"`tests/reference/{module}.py`", BY_CHOICE.get(name, ""))
        for name, tiny, module in stated
        if module is not None
    )
    yield _table(("name", "architecture", "takes", "statement", "differs by choice"), rows)
    yield "\n" + _GOLDEN
    columns_of_numbers = ("name", "model", "architecture", "published files", "date", "cases", "differs")
    yield _table(
        columns_of_numbers, (_describe_numbers(file) for file in sorted((HERE / "golden").glob("*/numbers.json")))
    )


def find_references() -> Mapping[str, str]:
    """Return the modules of `tests/reference` by the architecture, or the model type of a model or its tower, that
    `oracles.py` imports each for."""
    found = dict(HEARD)
    for branch in ast.walk(ast.parse(Path(__file__).with_name("oracles.py").read_text(encoding="utf-8"))):
        if isinstance(branch, ast.If) and isinstance(branch.test, ast.Compare):
            [asked] = branch.test.comparators
            for line in branch.body:
                if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("reference."):
                    for each in asked.elts if isinstance(asked, ast.Tuple) else [asked]:
                        assert isinstance(each, ast.Constant), ast.dump(asked)
                        found[str(each.value)] = str(line.module).removeprefix("reference.")
    return found


def reference_of(name: str, tiny: Tiny, references: Mapping[str, str]) -> str | None:
    """Return the module of `tests/reference` that a checkpoint is compared with; None for a class of Transformers."""
    if name in SIBLINGS:
        return None
    if tiny.published_as is not None:
        return references.get(tiny.published_as)
    if name == "baichuan2_13b":  # Baichuan 2 of 7B equals a Llama
        return references["baichuan"]
    architecture, _, tower = tiny.architecture.partition("/")
    is_text = not ENROLLED[name].modalities and not tower
    return None if is_text else references.get(architecture, references.get(tower))


def _describe(name: str, tiny: Tiny) -> Sequence[str]:
    compared = SIBLINGS.get(name) or tiny.architecture.partition("/")[0]
    return name, _architecture(tiny), _takes(name), compared, BY_CHOICE.get(name, "")


def _architecture(tiny: Tiny) -> str:
    return tiny.published_as or tiny.architecture


def _own_class(name: str, architecture: str) -> str:
    return "code beside the weights" if name in OWN_CODE else architecture


def _takes(name: str) -> str:
    kinds = {"audio": "audio", "image": "pictures", "video": "videos"}
    return ", ".join(["text", *(kinds[modality.value] for modality in ENROLLED[name].modalities)])


def _describe_numbers(file: Path) -> Sequence[str]:
    made = json.loads(file.read_text(encoding="utf-8"))
    config = json.loads((file.parent / "config.json").read_text(encoding="utf-8"))
    chosen = file.parent / "differences.json"
    differences: Mapping[str, Any] = json.loads(chosen.read_text(encoding="utf-8")) if chosen.exists() else {}
    reasons = [f"{case}: {next(iter(fields.values()))}" for case, fields in differences.items()]
    origin = made["origin"]
    source = f"{origin['source']}, Transformers {origin['transformers']}"
    architecture = ", ".join(config.get("architectures") or ())
    cases = ", ".join(made["cases"])
    return file.parent.name, origin["model"], architecture, source, origin["date"], cases, "; ".join(reasons)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/').strip() for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    print("".join(print_page()), end="")
