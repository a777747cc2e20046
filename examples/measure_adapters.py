"""Ask the adapters of the built-in model, and the model itself, about scenes that training cannot draw.

    python examples/measure_adapters.py examples/adapters --scenes 100

Each scene's first question of every kind is asked alone, of the model and of all adapters in the same batches. Prints a
line of JSON each: the share of answers that are right word for word, of all and by kind.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT.parent)]

from train_adapters import MANNERS, SHORT

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.demo.evaluate import messages_for
from seesay.demo.scenes import FIRST_EVALUATION_SEED, Example, make_example

KINDS = {
    "count": r"There (is|are) .*",
    "yes or no": r"(Yes|No)\.",
    "colour": r"(It|The \w+) is (?!an? )\w+\.",
    "shape": r"(It|The \w+ shape) is an? \w+\.",
    "sum": r"\d+ \+ \d+ = \d+\.",
}
"""The kinds of questions that all adapters are trained for, by their answers in English."""
PLAIN = "plain"


def draw_questions(num_scenes: int, first_seed: int = FIRST_EVALUATION_SEED) -> Iterator[tuple[str, Example]]:
    """Yield unseen questions with their kinds: of each scene the first of each kind."""
    for seed in range(first_seed, first_seed + num_scenes):
        for task in ("count", "attribute", "arithmetic"):
            example, there = make_example(task, seed), set[str]()
            for turn in example.turns:
                kind = next((name for name, form in KINDS.items() if re.fullmatch(form, turn[1])), None)
                if kind is not None and kind not in there and SHORT.fullmatch(turn[1]):
                    there.add(kind)
                    yield kind, replace(example, turns=(turn,), asked=0)


def say(name: str, answer: str) -> str:
    """Return an answer of the model as an adapter says it."""
    said = answer if name == PLAIN else MANNERS[name].say(answer)
    assert said is not None, answer
    return said


def measure(pipe: Pipeline, names: Sequence[str], num_scenes: int) -> dict[str, dict[str, float]]:
    """Return the shares of right answers, by adapters and kinds."""
    asked = [(name, *each) for each in draw_questions(num_scenes) for name in (PLAIN, *names)]
    answers = pipe(
        [messages_for(example) for _, _, example in asked],
        gen_config=GenerationConfig(max_new_tokens=96, do_sample=False),
        adapter_name=[None if name == PLAIN else name for name, _, _ in asked],
    )
    num_right, num_asked = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for (name, kind, example), answer in zip(asked, answers, strict=True):
        is_right = answer.text == say(name, example.turns[0][1])
        for key in ((name, kind), (name, "all")):
            num_asked[key] += 1
            num_right[key] += is_right
    return {
        name: {
            kind: round(num_right[name, kind] / num_asked[name, kind], 3)
            for kind in ("all", *KINDS)
            if num_asked[name, kind]
        }
        for name in (PLAIN, *names)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the adapters' folders")
    parser.add_argument("--scenes", type=int, default=100, help="of each task (default: 100)")
    given = parser.parse_args(arguments)
    names = sorted(path.parent.name for path in given.folder.glob("*/adapter_config.json"))
    config = EngineConfig(adapters={name: str(given.folder / name) for name in names})
    with pipeline("seesay-demo", backend_config=config) as pipe:
        for name, shares in measure(pipe, names, given.scenes).items():
            print(json.dumps({"adapter": name, **shares}), flush=True)


if __name__ == "__main__":
    main()
