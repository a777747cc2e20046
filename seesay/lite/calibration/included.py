"""The calibration set that comes with seesay, for any model: texts, conversations, and pictures with questions.

Everything in it was made for seesay and has its licence:

* `texts/`, 31 kB: prose of many kinds in English, and in 31 other languages; conversations in six languages.
* 90 kB of tables, CSV, JSON, YAML, logs and sums that `drawn_texts.py` writes.
* 140 kB of code: the beginnings of modules, scripts and style sheets of seesay itself.
* Pictures, drawn when they are needed: scenes of the built-in model with their questions and answers
  (`seesay/demo/scenes.py`), and imitations of photos, pages and screens (`seesay/demo/photo_stand_ins.py`).

A model without a vision tower gets no pictures. A conversation that a model's chat template refuses is left out.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from seesay.demo.evaluate import messages_for
from seesay.demo.photo_stand_ins import make_stand_in
from seesay.demo.scenes import make_example
from seesay.lite.calibration.dataset import CalibrationSet, Conversation
from seesay.lite.calibration.drawn_texts import draw_texts
from seesay.values import Message, TextPart
from seesay.vl.prompts.conversation_parts import parse_messages

INCLUDED = "built-in"
"""Its name, for `calib_dataset`."""

_TEXTS = Path(__file__).parent / "texts"
_PACKAGE = Path(__file__).parents[2]
_CODE = ("ui", "device")
_CODE_SUFFIXES = (".py", ".js", ".css")
_CODE_CHARS = 4000
_NUM_DRAWN_TEXTS = 140
_FIRST_SCENE = 2_000_000_000
"""Scenes from this seed on are neither those of training nor those that scores are measured on."""
_SCENE_TASKS = ("describe", "count", "attribute", "read", "chart", "spell")
_SIZES = ((336, 336), (448, 336), (336, 504), (640, 480), (480, 640), (768, 512))
_QUESTIONS = ("Describe this image.", "What is in this picture?", "What do you see?", "Give this picture a title.")


def included_calibration(num_prompts: int) -> CalibrationSet:
    """Return the set for at most `num_prompts` prompts. Half of them are conversations; of four of these, one shows a
    scene, two show imitations of photos, and one has no picture."""
    conversations: list[Conversation] = []
    talks = _read_talks()
    for index in range(num_prompts // 2):
        if index % 4 == 3 and talks:
            conversations.append(talks.pop(0))
        else:
            conversations.append(_show_stand_in(index) if index % 4 else _show_scene(index))
    return CalibrationSet(
        name=INCLUDED,
        texts=tuple(_read_texts()),
        conversations=tuple(conversations),
        fits_any_model=True,
    )


def _read_texts() -> list[str]:
    """Return all texts, the kinds mixed: every stretch of them has some of several."""
    texts = (_TEXTS / "english.txt").read_text(encoding="utf-8").split("\n\n---\n\n")
    texts += (_TEXTS / "languages.txt").read_text(encoding="utf-8").split("\n\n")
    texts += draw_texts(_NUM_DRAWN_TEXTS)
    for folder in _CODE:
        files = sorted(file for file in (_PACKAGE / folder).iterdir() if file.suffix in _CODE_SUFFIXES)
        texts += [file.read_text(encoding="utf-8")[:_CODE_CHARS] for file in files]
    random.Random("seesay-lite/order").shuffle(texts)
    return texts


def _read_talks() -> list[Conversation]:
    lines = (_TEXTS / "dialogues.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        Conversation(tuple(parse_messages(json.loads(line)["messages"])), f"built-in conversation {number}")
        for number, line in enumerate(lines, 1)
    ]


def _show_scene(index: int) -> Conversation:
    """Return a conversation about a scene, with the answer."""
    example = make_example(_SCENE_TASKS[index // 4 % len(_SCENE_TASKS)], _FIRST_SCENE + index)
    answer = Message(role="assistant", parts=(TextPart(text=example.turns[example.asked][1]),))
    return Conversation((*parse_messages(messages_for(example)), answer), f"built-in scene {index}")


def _show_stand_in(index: int) -> Conversation:
    """Return a question about an imitation of a photo, without an answer: no model has seen it."""
    rng = random.Random(f"seesay-lite/picture/{index}")
    picture = make_stand_in(rng, _SIZES[index % len(_SIZES)])
    content: list[dict[str, object]] = [
        {"type": "image_url", "image_url": {"url": picture.image}},
        {"type": "text", "text": rng.choice(_QUESTIONS)},
    ]
    return Conversation(tuple(parse_messages([{"role": "user", "content": content}])), f"built-in picture {index}")
