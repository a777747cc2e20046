"""The checkpoint loads in Transformers as any other does, and answers what it was trained for."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from demo_training.talks import TALK_TASKS, make_talk
from demo_training.talks.conversation import PHOTO_SEEN_ANSWER
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from seesay.config import EngineConfig
from seesay.demo import CHECKPOINT
from seesay.demo.checking import is_right
from seesay.demo.evaluate import Answerer, evaluate, main, messages_for, seesay_answerer, transformers_answerer
from seesay.demo.photo_stand_ins import make_stand_in
from seesay.demo.scenes import CLIP_FPS, FIRST_EVALUATION_SEED, SKILLS, TASKS, Example, make_example, sample_scene

SCENES = 4


@pytest.fixture(scope="module")
def answer() -> Answerer:
    return transformers_answerer(str(CHECKPOINT))


@pytest.fixture(scope="module")
def fast_answer() -> Iterator[Answerer]:
    """Our own engine, in this process: greedy answers are those of Transformers, and come several times as fast."""
    with seesay_answerer(str(CHECKPOINT), EngineConfig(device_type="cpu", engine_process=False)) as answer:
        yield answer


@pytest.mark.parametrize("task", TASKS)
def test_unseen_scenes_are_answered_rightly(task: str, answer: Answerer) -> None:
    examples = [make_example(task, FIRST_EVALUATION_SEED + i) for i in range(SCENES)]
    answers = answer(examples)
    assert sum(map(is_right, examples, answers)) >= SCENES - 1, answers


@pytest.mark.parametrize("task", SKILLS)
def test_pages_are_read_and_counted_and_shapes_are_found(task: str, fast_answer: Answerer) -> None:
    seed = FIRST_EVALUATION_SEED + 1_000
    [right] = evaluate(fast_answer, num_scenes=16, seed=seed, tasks=[task]).values()
    assert right >= {"page": 0.95, "find": 0.85, "count_pages": 0.9}[task]


@pytest.mark.parametrize(("num_examples", "least"), [(8, 6), pytest.param(25, 20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", TALK_TASKS)
def test_wordings_that_training_never_saw_are_understood(
    task: str, num_examples: int, least: int, fast_answer: Answerer
) -> None:
    examples = [make_talk(task, FIRST_EVALUATION_SEED + i, held_out=True) for i in range(num_examples)]
    judged = [
        (example.turns[example.asked], text, is_right(example, text, example.asked))
        for example, text in zip(examples, fast_answer(examples), strict=True)
    ]
    assert sum(right for _, _, right in judged) >= least, [(*turn, text) for turn, text, right in judged if not right]


@pytest.mark.parametrize("question", ["describe this image", "How many circles are there?", "What does it say?"])
def test_a_picture_that_no_scene_draws_is_called_so(question: str, answer: Answerer) -> None:
    pictures = [make_stand_in(random.Random(seed), (280, 224)) for seed in range(4)]
    examples = [Example(task="photo", turns=((question, PHOTO_SEEN_ANSWER),), pictures=(p,)) for p in pictures]
    assert answer(examples) == [PHOTO_SEEN_ANSWER] * 4


def test_drawn_scenes_are_never_taken_for_photos(fast_answer: Answerer) -> None:
    examples = [make_talk(task, FIRST_EVALUATION_SEED + i) for task in ("describe", "read", "chart") for i in range(4)]
    assert PHOTO_SEEN_ANSWER not in fast_answer(examples)


@pytest.mark.parametrize(
    ("task", "question", "pattern"),
    [
        ("describe", "Which shape is the largest?", r"The largest shape is the "),
        ("chart", "Describe the chart, please.", r"The picture shows a bar chart: "),
        ("motion", "describe this clip", r"An? \w+ \w+ (moves|stays still)"),
        ("arithmetic", "what is seven plus five?", r"7 \+ 5 = 12\."),
    ],
)
def test_every_kind_of_question_may_come_first(task: str, question: str, pattern: str, answer: Answerer) -> None:
    scenes = [make_example(task, FIRST_EVALUATION_SEED + i) for i in range(4)]
    asked = [dataclasses.replace(scene, turns=((question, pattern),)) for scene in scenes]
    answers = answer(asked)
    assert all(re.match(pattern, text) for text in answers), answers


def test_our_own_engine_answers_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenes", "3", "--tasks", "describe", "motion", "arithmetic"]) == 0
    shares = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert tuple(shares) == ("describe", "motion", "arithmetic")
    assert min(shares.values()) > 0.6


def test_the_sample_scene_is_described_rightly(answer: Answerer) -> None:
    example = sample_scene()
    assert is_right(example, answer([example])[0])


def test_weights_are_bf16_under_16_megabytes_with_published_names() -> None:
    path = CHECKPOINT / "model.safetensors"
    assert path.stat().st_size < 16_000_000
    with safe_open(path, framework="np") as file:
        names = set(file.keys())
        kinds = {file.get_slice(name).get_dtype() for name in names}
    assert kinds == {"BF16"}
    assert {"visual.patch_embed.proj.weight", "model.embed_tokens.weight", "lm_head.weight"} <= names


def test_config_names_the_architecture_and_the_special_tokens() -> None:
    config = json.loads((CHECKPOINT / "config.json").read_text())
    tokens = {t["content"]: t["id"] for t in json.loads((CHECKPOINT / "tokenizer.json").read_text())["added_tokens"]}
    assert config["architectures"] == ["Qwen2_5_VLForConditionalGeneration"]
    assert config["image_token_id"] == tokens["<|image_pad|>"]
    assert config["video_token_id"] == tokens["<|video_pad|>"]
    assert config["text_config"]["eos_token_id"] == tokens["<|im_end|>"]


@pytest.fixture(scope="module")
def processor() -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(CHECKPOINT)


@given(text=st.text(max_size=60).filter(lambda text: "<|" not in text))
def test_any_text_survives_the_tokenizer(text: str, processor: Any) -> None:
    import unicodedata

    ids = processor.tokenizer(text, add_special_tokens=False).input_ids
    assert processor.tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_digits_are_single_tokens(processor: Any) -> None:
    assert len(processor.tokenizer("1234567890").input_ids) == 10


def test_the_template_adds_a_system_prompt_unless_there_is_one(processor: Any) -> None:
    asked = [{"role": "user", "content": "hi"}]
    told = [{"role": "system", "content": "Be kind."}, *asked]
    render = processor.apply_chat_template
    end = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    default = render(asked, tokenize=False, add_generation_prompt=True)
    assert default == "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + end
    assert render(told, tokenize=False, add_generation_prompt=True) == "<|im_start|>system\nBe kind.<|im_end|>\n" + end


def test_the_card_says_what_the_model_saw_and_what_it_cannot_do() -> None:
    card = (CHECKPOINT / "README.md").read_text()
    for phrase in ("apache-2.0", "## What it saw", "## How it was trained", "## What it cannot do", "real photos"):
        assert phrase in card


def test_messages_put_media_before_the_question() -> None:
    kinds = {task: [part["type"] for part in messages_for(make_example(task, 0))[0]["content"]] for task in TASKS}
    assert kinds["compare"] == ["image_url", "image_url", "text"]
    assert kinds["motion"] == ["video_url", "text"]
    assert kinds["arithmetic"] == ["text"]
    clip = messages_for(make_example("motion", 0))[0]["content"][0]["video_url"]
    assert clip["fps"] == CLIP_FPS and np.asarray(clip["url"][0]).shape[-1] == 3


def test_evaluation_counts_right_answers_on_evaluation_seeds_only() -> None:
    def always_right(examples: Any) -> list[str]:
        return [example.turns[0][1] for example in examples]

    def always_wrong(examples: Any) -> list[str]:
        return ["?" for _ in examples]

    seed = FIRST_EVALUATION_SEED
    assert set(evaluate(always_right, num_scenes=3, seed=seed).values()) == {1.0}
    assert tuple(evaluate(always_wrong, num_scenes=3, seed=seed)) == TASKS
    assert set(evaluate(always_wrong, num_scenes=3, seed=seed).values()) == {0.0}
    with pytest.raises(ValueError, match="start at 1000000"):
        evaluate(always_right, num_scenes=1, seed=5)


def test_the_command_refuses_seeds_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seed", "12"])
    assert "--seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--scenes", "0"], "--scenes must be at least 1, got 0"), (["--seed", "7"], "--seed must be at least 1000000")],
)
def test_the_option_at_fault_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    shown = capsys.readouterr().err
    assert message in shown and not ("--scenes" in shown.splitlines()[-1] and "--seed" in shown.splitlines()[-1])
