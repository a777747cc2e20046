"""The requests of a measurement, by where they come from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from seesay.bench.dataset_options import DatasetOptions
from seesay.bench.datasets import load_requests
from seesay.errors import ConfigError


def write(folder: Path, *records: Any, lines: bool = True) -> Path:
    path = folder / "records"
    path.write_text("\n".join(map(json.dumps, records)) if lines else json.dumps(records))
    return path


def talk(question: str, answer: str) -> dict[str, Any]:
    return {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}


def test_random_texts_have_the_wanted_lengths() -> None:
    options = DatasetOptions(num_prompts=50, input_len=20, output_len=10, range_ratio=0.5, seed=3)
    requests = load_requests(options)
    words = [len(request.text.split()) for request in requests]
    answers = [request.num_output_tokens for request in requests]
    assert (min(words), max(words), min(answers), max(answers)) == (10, 20, 5, 10)
    assert requests == load_requests(options) and len({request.text for request in requests}) == 50


def test_one_length_of_answers_in_place_of_random_ones() -> None:
    options = DatasetOptions(num_prompts=9, input_len=20, range_ratio=0.5)
    fixed = load_requests(dataclasses.replace(options, fixed_output_len=4))
    assert [request.num_output_tokens for request in fixed] == [4] * 9
    assert [request.text for request in fixed] == [request.text for request in load_requests(options)]


def test_random_texts_begin_with_the_same_words() -> None:
    plain = DatasetOptions(num_prompts=5, input_len=6, output_len=3)
    alone, behind = load_requests(plain), load_requests(dataclasses.replace(plain, prefix_len=4))
    (prefix,) = {" ".join(request.text.split()[:4]) for request in behind}
    assert [request.text for request in behind] == [f"{prefix} {request.text}" for request in alone]


def test_random_pictures_are_all_different() -> None:
    options = DatasetOptions(name="random-image", num_prompts=3, input_len=2, image_size=(30, 20), num_images=2)
    pictures = [picture for request in load_requests(options) for picture in request.images]
    assert [picture.size for picture in pictures] == [(30, 20)] * 6
    assert len({picture.tobytes() for picture in pictures}) == 6


@pytest.mark.parametrize("lines", [True, False])
def test_sharegpt_gives_first_questions_and_the_lengths_of_their_answers(tmp_path: Path, lines: bool) -> None:
    path = write(
        tmp_path, talk("a b c d e", "f g h i"), talk("too short", "x y z u"), talk("a " * 1025, "f g h i"),
        talk("a " * 1000, "b " * 1049), {"conversations": []}, {"id": 1}, talk("k l m n", "o p q r s t"), lines=lines,
    )  # fmt: skip
    options = DatasetOptions(name="sharegpt", path=path, num_prompts=5)
    requests = load_requests(options, lambda text: len(text.split()))
    assert {(request.text, request.num_output_tokens) for request in requests} == {("a b c d e", 4), ("k l m n", 6)}
    assert len(requests) == 5, "a short file is repeated"


def test_records_about_pictures(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    Image.new("L", (4, 3)).save(tmp_path / "pictures" / "a.png")
    arena = {"conversation": [[{"role": "user", "content": "what?"}], [{"role": "assistant", "content": "x"}]]}
    path = write(tmp_path, {**arena, "images": ["a.png"]}, {"question": "which?", "image": {"path": "a.png"}}, {"x": 1})
    options = DatasetOptions(
        name="visionarena", path=path, num_prompts=2, output_len=7, image_folder=tmp_path / "pictures"
    )
    requests = sorted(load_requests(options), key=lambda request: request.text)
    assert [(request.text, request.num_output_tokens) for request in requests] == [("what?", 7), ("which?", 7)]
    assert all([(image.size, image.mode) for image in request.images] == [((4, 3), "RGB")] for request in requests)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "a", "output_tokens": 3})
    [request] = load_requests(DatasetOptions(name="custom", path=path, num_prompts=1))
    assert request == ("a", [], 3)
    [request] = load_requests(DatasetOptions(name="custom", path=path, num_prompts=1, fixed_output_len=9))
    assert request.num_output_tokens == 9


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": 3}, ": prompt must be a text, got 3"),
        ({"prompt": "a", "output_tokens": -1}, ": output_tokens must be a positive integer"),
        ({"prompt": "a", "output_tokens": 0}, ": output_tokens must be a positive integer"),
        ({"prompt": "a", "images": ["none.png"]}, ": cannot open"),
        ({"prompt": "a", "images": ["../../etc/passwd"]}, ": .* is outside of"),
        ([1], " must be an object"),
    ],
    ids=str,
)
@pytest.mark.parametrize("lines", [True, False])
def test_a_wrong_record_is_told_with_its_place(tmp_path: Path, record: Any, message: str, lines: bool) -> None:
    path = write(tmp_path, {"prompt": "a"}, {"prompt": "b"}, record, lines=lines)
    if lines:
        path.write_text(f"\n{path.read_text()}")
    place = "line 4" if lines else "record 3"
    with pytest.raises(ConfigError, match=f"records: {place}{message}"):
        load_requests(DatasetOptions(name="custom", path=path, num_prompts=1))


def test_a_file_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text('{"prompt": "a"}\n{')
    for path, message in ((None, "--dataset-path"), (tmp_path / "none", "cannot read"), (broken, "broken: line 2: ")):
        with pytest.raises(ConfigError, match=message):
            load_requests(DatasetOptions(name="sharegpt", path=path))
    with pytest.raises(ConfigError, match="random-image draws its requests and reads no file"):
        DatasetOptions(name="random-image", path=broken)
    with pytest.raises(ConfigError, match="no record"):
        load_requests(DatasetOptions(name="sharegpt", path=write(tmp_path, {"x": 1})))
