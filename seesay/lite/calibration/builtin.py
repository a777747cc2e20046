"""The calibration set of the built-in model: conversations about scenes of its training."""

from __future__ import annotations

from seesay.demo.evaluate import messages_for
from seesay.demo.scenes import TRAINING_TASKS, make_example, training_seed
from seesay.lite.calibration.dataset import CalibrationSet, Conversation
from seesay.values import Message, TextPart
from seesay.vl.prompts.conversation_parts import parse_messages

_FIRST = 1 << 40
"""Scenes from this one on were never drawn in training."""


def builtin_calibration(num_prompts: int) -> CalibrationSet:
    """Return conversations with all answers, as many as prompts are wanted, of all tasks in turn."""
    conversations = []
    for index in range(num_prompts):
        example = make_example(TRAINING_TASKS[index % len(TRAINING_TASKS)], training_seed(_FIRST + index))
        messages = parse_messages(messages_for(example))
        answer = Message(role="assistant", parts=(TextPart(text=example.turns[example.asked][1]),))
        conversations.append(Conversation((*messages, answer), f"built-in scene {index}"))
    return CalibrationSet(name="the built-in scenes", conversations=tuple(conversations))
