"""Scenes of pages and boxes: what is drawn is what the answers say, and training learns from no forced words."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from demo_training import packing as pk
from demo_training.talks import make_talk
from demo_training.talks.boxes import talk_about_boxes
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import num_examples
from tokenizers import Tokenizer

from seesay import GenerationConfig, pipeline
from seesay.demo import CHECKPOINT
from seesay.demo.box_scenes import FORCED_START, boxes_answer
from seesay.demo.checking import is_right, overlap, score, share_of_characters
from seesay.demo.drawing import Thing, draw_things
from seesay.demo.evaluate import make_pdf_example, messages_for
from seesay.demo.example import Canvas, Example, fit_size
from seesay.demo.page_scenes import LARGEST_TEXT_PX, SMALLEST_TEXT_PX, draw_page
from seesay.demo.scenes import FIRST_EVALUATION_SEED, SKILLS, make_example
from seesay.demo.vocabulary import SHAPES, WORDS

tasks = st.sampled_from(SKILLS)
seeds = st.integers(min_value=-(2**40), max_value=2**40)


@pytest.fixture(scope="module")
def encoder() -> pk.Encoder:
    return pk.Encoder(Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json")))


@given(task=tasks, seed=seeds)
@settings(max_examples=num_examples(30), deadline=None)
def test_scenes_follow_from_their_seed_and_expected_answers_are_right(task: str, seed: int) -> None:
    one, again = make_example(task, seed), make_example(task, seed)
    assert one.turns == again.turns
    assert [image.tobytes() for image in one.images] == [image.tobytes() for image in again.images]
    assert all(is_right(one, answer, turn) for turn, (_, answer) in enumerate(one.turns))
    assert score(one, one.turns[0][1]) == 1 and score(one, "Many monkeys.") < 0.5


@given(task=tasks, seed=seeds, held_out=st.booleans())
@settings(max_examples=num_examples(30), deadline=None)
def test_talks_follow_from_their_seed_and_expected_answers_are_right(task: str, seed: int, held_out: bool) -> None:
    one, again = (make_talk(task, seed, held_out=held_out) for _ in range(2))
    assert one.turns == again.turns and len(one.kinds) == len(one.turns)
    assert all(is_right(one, answer, turn) for turn, (_, answer) in enumerate(one.turns))


@given(seed=seeds, num_lines=st.integers(2, 8))
@settings(max_examples=num_examples(60), deadline=None)
def test_a_page_has_its_lines_within_its_edges_in_print_that_is_large_enough(seed: int, num_lines: int) -> None:
    page = draw_page(random.Random(seed), num_lines=num_lines)
    width, height = page.picture.image.size
    assert len(page.lines) == num_lines and all(line == line.strip() != "" for line in page.lines)
    for left, top, right, bottom in (mark.box for mark in page.picture.marks):
        assert 0 <= left < right <= width + 2 and 0 <= top < bottom <= height + 1
    seen = fit_size(width, height)
    heights = {(mark.box[3] - mark.box[1]) / 0.8 * seen[1] / height for mark in page.picture.marks}
    assert min(heights) > SMALLEST_TEXT_PX * 0.93 and max(heights) < LARGEST_TEXT_PX * 1.15
    assert "".join(mark.glyph for mark in page.picture.marks) == page.text.replace("\n", "").replace(" ", "")


def test_evaluation_has_words_that_no_list_has_and_other_lines_than_training() -> None:
    lines = [
        {line for seed in seeds for line in make_example("page", seed).turns[0][1].split("\n")}
        for seeds in (range(-150, 0), range(FIRST_EVALUATION_SEED, FIRST_EVALUATION_SEED + 50))
    ]
    words = [word for line in lines[1] for word in line.split() if word.isalpha()]
    assert 0.3 < sum(word.casefold() not in WORDS for word in words) / len(words) < 0.7
    assert len([line for line in lines[1] - lines[0] if len(line) > 3]) > 0.9 * len(lines[1])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_box_is_the_rectangle_that_the_shape_fills(shape: str) -> None:
    thing = Thing(colour="red", shape=shape, x=90, y=70, radius=40, rgb=(255, 0, 0), tilt=0.1)
    drawn = np.asarray(draw_things((200, 150), (255, 255, 255), [thing]).image)
    ys, xs = np.nonzero((drawn != 255).any(-1))
    found = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
    assert overlap(thing.box, found) > 0.94, (thing.box, found)


def test_boxes_are_pixels_of_the_picture_as_the_model_sees_it() -> None:
    thing = Thing(colour="blue", shape="circle", x=200, y=100, radius=50, rgb=(0, 0, 255))
    assert fit_size(504, 504) == (252, 252)
    answer = boxes_answer([thing], Canvas(width=504, height=504))
    assert answer == '[{"bbox_2d": [75, 25, 125, 75], "label": "blue circle"}]'
    assert answer.startswith(FORCED_START)


def test_an_answer_of_boxes_marks_the_shape_in_the_picture_that_was_given() -> None:
    """The family reads the answers as training writes them."""
    example = make_example("find", FIRST_EVALUATION_SEED + 3)
    expected = example.turns[0][1]
    with pipeline() as pipe:
        forced = GenerationConfig(response_format={"type": "choice", "choice": [expected]})
        [response] = pipe([messages_for(example)], gen_config=forced)
    [box] = response.boxes
    picture = example.pictures[0]
    width, height = picture.image.size
    assert 0 <= box.left < box.right <= width + 1 and 0 <= box.top < box.bottom <= height + 1
    found = (box.left, box.top, box.right, box.bottom)
    best = max(overlap(found, mark.box) for mark in picture.marks)
    assert best > 0.9 and box.label == json.loads(expected)[0]["label"]


def test_a_page_goes_through_a_pdf() -> None:
    example = make_pdf_example("page", FIRST_EVALUATION_SEED)
    [picture] = example.pictures
    assert picture.image.width in (1190, 1191, 1192) and example.turns == make_example("page", 1_000_000).turns
    assert np.asarray(picture.image.convert("L")).min() < 120


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("abc 12\nde", 1.0), (" abc 12\nde\n", 1.0), ("abc 12 de", 8 / 9), ("abc 1\nde", 8 / 9), ("axc 12\nd", 7 / 9),
        ("", 0.0), ("de\nabc 12", 3 / 9), ("abc 12\nde" * 3, 0.0),
    ],
)  # fmt: skip
def test_characters_are_counted_by_the_edits_that_they_need(answer: str, share: float) -> None:
    assert share_of_characters("abc 12\nde", answer) == pytest.approx(share)


ONE = '{"bbox_2d": [10, 10, 50, 50], "label": "red star"}'
OTHER = '{"bbox_2d": [100, 10, 150, 60], "label": "red star"}'


@pytest.mark.parametrize(
    ("expected", "answer", "right"),
    [
        (f"[{ONE}]", f"[{ONE}]", True),
        (f"[{ONE}]", '[{"bbox_2d": [12, 11, 51, 50], "label": "red star"}]', True),
        (f"[{ONE}]", '[{"bbox_2d": [20, 10, 60, 50], "label": "red star"}]', False),
        (f"[{ONE}]", '[{"bbox_2d": [10, 10, 50, 50], "label": "red ring"}]', False),
        (f"[{ONE}, {OTHER}]", f"[{OTHER}, {ONE}]", True),
        (f"[{ONE}, {OTHER}]", f"[{ONE}, {ONE}]", False),
        (f"[{ONE}, {OTHER}]", f"[{ONE}]", False),
        ("[]", "[]", True),
        ("[]", f"[{ONE}]", False),
        (f"[{ONE}]", f"[{ONE}", False),
        (f"[{ONE}]", '[{"bbox_2d": "10, 10", "label": "red star"}]', False),
        (f"[{ONE}]", '[{"bbox_2d": ["a", "b", "c", "d"], "label": "red star"}]', False),
        (f"[{ONE}]", '{"bbox_2d": [10, 10, 50, 50], "label": "red star"}', False),
        (f"[{ONE}]", "At the top left.", False),
    ],
)
def test_boxes_are_right_by_label_and_overlap(expected: str, answer: str, right: bool) -> None:
    assert is_right(Example(task="find", turns=(("find it", expected),)), answer) is right


def test_what_a_grammar_forces_is_not_taught(encoder: pk.Encoder) -> None:
    rng = random.Random(0)
    forced = next(e for e in (talk_about_boxes(rng, "find", False) for _ in range(200)) if e.forced_start)
    conversation = encoder.encode(forced, random.Random(0))
    taught = [id for id, is_answer in zip(conversation.token_ids, conversation.is_answer, strict=True) if is_answer]
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    answers = tokenizer.decode(taught, skip_special_tokens=False).split("<|im_end|>")
    assert answers[:-1] == [answer.removeprefix(FORCED_START) for _, answer in forced.turns]
    whole = encoder.encode(make_example("find", -1), random.Random(0))
    assert sum(whole.is_answer) > 40


def test_patches_of_a_shape_say_how_far_its_sides_are() -> None:
    thing = Thing(colour="red", shape="square", x=84, y=70, radius=35, rgb=(255, 0, 0))
    picture = draw_things((252, 252), (255, 255, 255), [thing])
    labels, boxes = pk.label_patches(picture, (252, 252))
    order, _ = pk.window_order(9, 9)
    places = np.stack(np.divmod(order, 9), -1)[:, None] * 2 + np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
    centres = places.reshape(-1, 2)[:, ::-1] * 14 + 7
    inside = labels[:, 1] > 0
    assert inside.sum() == 16 and not boxes[~inside].any()
    found = np.concatenate([centres[inside] + boxes[inside, :2], centres[inside] + boxes[inside, 2:]], 1)
    assert (np.abs(found - np.array(thing.box)) <= 0.5).all()


def test_the_longest_conversations_fit_into_a_pack(encoder: pk.Encoder) -> None:
    for task, num_scenes in (("page", 60), ("find", 60), ("count_pages", 25)):
        for seed in range(-num_scenes, 0):
            conversation = encoder.encode(make_example(task, seed), random.Random(0))
            assert len(conversation.token_ids) < pk.LONGEST_CONVERSATION
