"""Writes questions about scenes of the built-in model, for harnesses: `python make_tasks.py FOLDER [NUMBER]`.

FOLDER gets `scenes.jsonl` (pictures, below `pictures/`) and `sums.jsonl` (text alone), with NUMBER
questions of each task, and the questions about pictures once more as VLMEvalKit reads them: `seesay_scenes.tsv`.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from seesay.demo.scenes import FIRST_EVALUATION_SEED, make_example

TASKS = {"scenes.jsonl": ("describe", "count", "attribute", "read", "chart", "compare"), "sums.jsonl": ("arithmetic",)}


def main() -> None:
    folder, number = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 50
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for name, tasks in TASKS.items():
        questions = [
            _write_question(folder, task, FIRST_EVALUATION_SEED + index) for task in tasks for index in range(number)
        ]
        (folder / name).write_text("".join(json.dumps(question) + "\n" for question in questions), encoding="utf-8")
        if name == "scenes.jsonl":
            _write_table(folder / "seesay_scenes.tsv", questions)


def _write_table(path: Path, questions: Sequence[dict[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(("index", "image_path", "question", "answer", "task", "seed"))
        for index, question in enumerate(questions):
            pictures = json.dumps(question["pictures"])
            writer.writerow((index, pictures, *(question[name] for name in ("question", "answer", "task", "seed"))))


def _write_question(folder: Path, task: str, seed: int) -> dict[str, object]:
    example = make_example(task, seed)
    pictures = [folder / "pictures" / f"{task}-{seed}-{index}.png" for index, _ in enumerate(example.images)]
    for path, picture in zip(pictures, example.images, strict=True):
        picture.save(path)
    question, answer = example.turns[0]
    return {
        "task": task,
        "seed": seed,
        "question": question,
        "answer": answer,
        "pictures": [str(p.resolve()) for p in pictures],
    }


if __name__ == "__main__":
    main()
