"""The requests of a measurement: from published files of conversations, from files of one's own, or drawn at random."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from PIL import Image

from seesay.bench.dataset_options import DatasetOptions
from seesay.bench.workload import Request, make_picture, make_text
from seesay.errors import ConfigError, show

CountTokens = Callable[[str], int]
_CHARS_PER_TOKEN = 4
_USERS = ("user", "human")
_MOST_PROMPT_TOKENS, _MOST_TOKENS, _LEAST_TOKENS = 1024, 2048, 4  # of ShareGPT, as LMDeploy and vLLM choose


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has, where no tokenizer is at hand."""
    return max(1, len(text) // _CHARS_PER_TOKEN)


def load_requests(options: DatasetOptions, count_tokens: CountTokens = estimate_tokens) -> list[Request]:
    """Return the requests. Raises `ConfigError` for a file that does not have what it should."""
    if options.name.startswith("random"):
        return _draw(options)
    assert options.path is not None
    match options.name:
        case "sharegpt":
            found = list(_read_sharegpt(options.path, options, count_tokens))
        case "visionarena":
            found = list(_read_vision(options.path, options))
        case _:
            found = list(_read_custom(options.path, options))
    if not found:
        raise ConfigError(f"{options.path}: no record of this file can be used as {options.name!r}")
    random.Random(options.seed).shuffle(found)
    # A short file is repeated, as other benchmarks do.
    return [found[number % len(found)] for number in range(options.num_prompts)]


def _draw(options: DatasetOptions) -> list[Request]:
    rng = random.Random(options.seed)

    def length(most: int) -> int:
        return rng.randint(max(1, int(most * options.range_ratio)), most)

    num_images = options.num_images if options.name == "random-image" else 0
    prefix = make_text(options.prefix_len, random.Random(f"prefix {options.seed}"))
    requests = []
    for number in range(options.num_prompts):
        text, num_tokens = make_text(length(options.input_len), rng), length(options.output_len)
        num_tokens = options.fixed_output_len or num_tokens
        seeds = (options.seed * 100_003 + number * num_images + index for index in range(num_images))
        text = f"{prefix} {text}" if prefix else text
        requests.append(Request(text, [make_picture(*options.image_size, seed) for seed in seeds], num_tokens))
    return requests


def _read_sharegpt(path: Path, options: DatasetOptions, count_tokens: CountTokens) -> Iterator[Request]:
    """Yield the first question of each conversation; the answer is as long as the recorded one."""
    for _, record in _read_records(path):
        question, answer = _first_turns(record)
        if not (question and answer):
            continue
        num_prompt, num_answer = count_tokens(question), options.fixed_output_len or count_tokens(answer)
        is_long = num_prompt > _MOST_PROMPT_TOKENS or num_prompt + num_answer > _MOST_TOKENS
        if not is_long and min(num_prompt, num_answer) >= _LEAST_TOKENS:
            yield Request(question, [], num_answer)


def _first_turns(record: dict[str, Any]) -> tuple[str, str]:
    """Return the texts of the first two turns of a conversation; empty where it has none."""
    turns = record.get("conversations") or record.get("conversation") or []
    texts = [*map(_text_of, turns[:2]), "", ""]
    return texts[0], texts[1]


def _text_of(turn: Any) -> str:
    text = turn.get("value") or turn.get("content") if isinstance(turn, dict) else None
    return text if isinstance(text, str) else ""


def _read_vision(path: Path, options: DatasetOptions) -> Iterator[Request]:
    """Yield the first question of each record, with its pictures from `image_folder`."""
    for place, record in _read_records(path):
        if text := _first_question(record):
            pictures = [_open_picture(name, place, path, options) for name in _names_of_pictures(record)]
            yield Request(text, pictures, options.fixed_output_len or options.output_len)


def _first_question(record: dict[str, Any]) -> str:
    turns = record.get("conversation") or record.get("conversations") or record.get("messages") or []
    if turns and isinstance(turns[0], list):  # VisionArena has a list in each turn
        turns = list(chain.from_iterable(turns))
    text = next(map(_text_of, filter(_is_asked, turns)), "") or record.get("question") or record.get("prompt")
    return text if isinstance(text, str) else ""


def _is_asked(turn: Any) -> bool:
    return isinstance(turn, dict) and turn.get("role", turn.get("from")) in _USERS


def _names_of_pictures(record: dict[str, Any]) -> list[str]:
    given = record.get("images") or record.get("image") or []
    names = [given] if isinstance(given, (str, dict)) else list(given)
    return [str(name.get("path") if isinstance(name, dict) else name) for name in names]


def _read_custom(path: Path, options: DatasetOptions) -> Iterator[Request]:
    """Yield {"prompt": text, "output_tokens": number, "images": [files]}; only the prompt is required."""
    for place, record in _read_records(path):
        prompt = record.get("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise ConfigError(f"{path}: {place}: prompt must be a text, got {show(prompt)}")
        given = record.get("output_tokens")
        num_tokens = options.output_len if given is None else given
        if type(num_tokens) is not int or num_tokens < 1:
            raise ConfigError(f"{path}: {place}: output_tokens must be a positive integer, got {show(num_tokens)}")
        pictures = [_open_picture(name, place, path, options) for name in _names_of_pictures(record)]
        yield Request(prompt, pictures, options.fixed_output_len or num_tokens)


def _open_picture(name: str, place: str, path: Path, options: DatasetOptions) -> Image.Image:
    """Open a picture in the folder of pictures, which is by default that of the file."""
    folder = (options.image_folder or path.parent).resolve()
    picture = (folder / name).resolve()
    if not picture.is_relative_to(folder):
        raise ConfigError(f"{path}: {place}: {name!r} is outside of {folder}")
    try:
        with Image.open(picture) as opened:
            return opened.convert("RGB")
    except OSError as error:
        raise ConfigError(f"{path}: {place}: cannot open {picture}: {error}") from None


def _read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSON list, or of a file with one a line, each with its place: "record 3", "line 3"."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    for place, record in _parse(path, text):
        if not isinstance(record, dict):
            raise ConfigError(f"{path}: {place} must be an object, got {show(record)}")
        yield place, record


def _parse(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    place = ""
    try:
        if text.lstrip().startswith("["):
            for number, record in enumerate(json.loads(text), start=1):
                yield f"record {number}", record
            return
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                place = f"line {number}: "
                yield f"line {number}", json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {place}{error}") from None
