"""Measure the demo checkpoint's accuracy in wordings held out of training: `python examples/evaluate_phrasings.py`.

Prints one line of JSON: per task, the share of right answers (0 to 1) to the few wordings of `seesay.demo.evaluate`
(`known`) and to forms held out of training (`unseen`); `--kinds` also reports the latter by kind of question.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT.parent)]

from demo_training.talks import TALK_TASKS, make_talk

from seesay.demo.evaluate import (
    Answerer,
    judged_answers,
    make_parser,
    open_evaluation,
    share_right,
)
from seesay.demo.scenes import SKILLS, TASKS, make_example


def evaluate_phrasings(
    answer: Answerer, *, num_scenes: int, seed: int, tasks: Sequence[str] = TALK_TASKS, by_kind: bool = False
) -> dict[str, dict[str, float]]:
    """Return, per task, the share of right answers to wordings from training (if any) and to held-out forms.

    by_kind: add the share of each kind of held-out question.
    """
    judge = functools.partial(judged_answers, answer, num_scenes=num_scenes, seed=seed)
    figures = {}
    for task in tasks:
        shares = {}
        if task in (*TASKS, *SKILLS):
            shares["known"] = share_right(list(judge(make_example, task=task)))
        judged = list(judge(functools.partial(make_talk, held_out=True), task=task))
        shares["unseen"] = share_right(judged)
        if by_kind:
            kinds = sorted({example.kinds[example.asked] for example, _ in judged})
            shares |= {kind: share_right([j for j in judged if j[0].kinds[j[0].asked] == kind]) for kind in kinds}
        figures[task] = shares
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("python examples/evaluate_phrasings.py", __doc__)
    parser.add_argument(
        "--tasks", nargs="+", choices=(*TALK_TASKS, *SKILLS), default=TALK_TASKS, help="only these tasks"
    )
    parser.add_argument("--kinds", action="store_true", help="also report the share of each kind of question")
    given = parser.parse_args(arguments)
    with open_evaluation(parser, given) as answer:
        figures = evaluate_phrasings(
            answer, num_scenes=given.scenes, seed=given.seed, tasks=given.tasks, by_kind=given.kinds
        )
        print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
