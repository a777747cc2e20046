"""Beam search: the answers of Transformers' own, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import make_message, make_picture
from enrolment import WITH_PICTURES
from oracles import load_oracle, load_text_oracle
from processing import process
from waiting import wait_until

from seesay import BeamSearchParams, Pipeline, pipeline
from seesay.config import EngineConfig
from seesay.engine.front.beams import BeamSearch
from seesay.engine.front.response import Response
from seesay.errors import ConfigError

NEW_TOKENS = 7
CONVERSATIONS = (
    [make_message("the game is in the frame, " * 3)],
    [make_message("before ", make_picture(40, 56, 2), " after")],
)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "not cached, ahead, chunks": {
        "enable_prefix_caching": False, "async_scheduling": True, "max_prefill_token_num": 24, "engine_process": False,
    },
    "process": {"engine_process": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def path(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("qwen2_5_vl")


@pytest.fixture(scope="module", params=WAYS)
def pipe(request: pytest.FixtureRequest, path: Path) -> Iterator[Pipeline]:
    if request.param == "process":
        pytest.importorskip("msgspec")
        pytest.importorskip("zmq")
    config = EngineConfig(device_type="cpu", block_size=16, **WAYS[request.param])
    with pipeline(str(path), backend_config=config) as pipe:
        yield pipe


@pytest.fixture(scope="module")
def oracle(path: Path) -> Callable[..., tuple[list[list[int]], list[float]]]:
    return make_oracle(path, "qwen2_5_vl")


def make_oracle(path: Path, name: str) -> Callable[..., tuple[list[list[int]], list[float]]]:
    """Transformers' beam search of a conversation: tokens without the prompt and what follows an EOS, and scores."""
    model, processor = (load_oracle if name in WITH_PICTURES else load_text_oracle)(path)

    def search(conversation: Any, eos: list[int] | None, **options: Any) -> tuple[list[list[int]], list[float]]:
        text = processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        images = [part["image"] for m in conversation for part in m["content"] if part["type"] == "image"]
        inputs = process(processor, text, images=images, add_special_tokens=False)
        model.generation_config.eos_token_id = eos
        with torch.inference_mode():
            output = model.generate(
                **inputs, do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=eos, pad_token_id=0,
                num_return_sequences=options["num_beams"], return_dict_in_generate=True, output_scores=True, **options,
            )  # fmt: skip
        found = []
        for row in output.sequences[:, inputs["input_ids"].shape[1] :].tolist():
            ends = [index for index, token_id in enumerate(row) if token_id in (eos or ())]
            found.append(row[: ends[0]] if ends else row)
        return found, output.sequences_scores.tolist()

    return search


def as_list(found: Response | list[Response]) -> list[Response]:
    return found if isinstance(found, list) else [found]


def check(answer: Response, expected: tuple[list[list[int]], list[float]]) -> None:
    tokens, scores = expected
    assert [choice.token_ids for choice in answer.choices] == tokens
    assert [choice.score for choice in answer.choices] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_answers_are_those_of_transformers(pipe: Pipeline, oracle: Any, width: int) -> None:
    params = BeamSearchParams(beam_width=width, max_tokens=NEW_TOKENS, ignore_eos=True)
    before = pipe.engine.stats()
    answers = as_list(pipe.beam_search(list(CONVERSATIONS), params))
    for index, (answer, conversation) in enumerate(zip(answers, CONVERSATIONS, strict=True)):
        if width > 1:
            check(answer, oracle(conversation, None, num_beams=width))
        assert [choice.choice_index for choice in answer.choices] == list(range(width))
        assert (answer.index, answer.finish_reason) == (index, "length")
    after = pipe.engine.stats()
    # Each prompt once, if the first searches have not left it in the prefix cache, and each text's token once.
    num_prompt = sum(answer.input_token_len for answer in answers)
    computed = after.total_step_tokens - before.total_step_tokens
    assert computed <= num_prompt + len(answers) * width * (NEW_TOKENS - 1)
    if not pipe.engine.config.enable_prefix_caching:
        assert computed == num_prompt + len(answers) * width * (NEW_TOKENS - 1)
    wait_until(lambda: pipe.engine.stats().num_used_kv_blocks == 0)


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_answers_that_end_are_those_of_transformers(
    pipe: Pipeline, oracle: Any, monkeypatch: pytest.MonkeyPatch, penalty: float, early_stopping: Any
) -> None:
    """Tokens that are likely end answers, so that the search stops early, or compares lengths."""
    if not pipe.engine.config.enable_prefix_caching and penalty not in (0.0, 2.5):
        pytest.skip("said by the others")
    free = as_list(pipe.beam_search(CONVERSATIONS[0], BeamSearchParams(beam_width=3, max_tokens=4, ignore_eos=True)))
    eos = sorted({token_id for choice in free[0].choices for token_id in choice.token_ids[1:]})
    monkeypatch.setattr(pipe.engine._preparer.answers, "eos_token_ids", tuple(eos))
    monkeypatch.setattr(pipe.engine.chat_template, "stop_words", (), raising=False)
    params = BeamSearchParams(
        beam_width=3, max_tokens=NEW_TOKENS, length_penalty=penalty, early_stopping=early_stopping
    )
    ended = 0
    for conversation in CONVERSATIONS:
        [answer] = as_list(pipe.beam_search(conversation, params))
        check(answer, oracle(conversation, eos, num_beams=3, length_penalty=penalty, early_stopping=early_stopping))
        ended += sum(choice.finish_reason == "stop" for choice in answer.choices)
    assert ended or penalty > 0, "long answers may be the better ones"


@pytest.mark.parametrize("way", ["plain", "not cached, ahead, chunks", "few slots, host"])
@pytest.mark.parametrize("name", ["granite4", "qwen3_5", "lfm2_vl"])
def test_layers_with_states_answer_as_those_of_transformers(
    name: str, way: str, tiny_checkpoint: Callable[[str], Path]
) -> None:
    """A text begins behind the last snapshot of what it has in common with others, and may need its own slot."""
    path = tiny_checkpoint(name)
    oracle = make_oracle(path, name)
    conversations = CONVERSATIONS if name in WITH_PICTURES else CONVERSATIONS[:1]
    few: dict[str, Any] = {"max_batch_size": 3, "block_size": 4, "num_gpu_blocks": 24, "num_cpu_blocks": 60}
    options = {"block_size": 16, "engine_process": False, **WAYS.get(way, few)}
    with pipeline(str(path), backend_config=EngineConfig(device_type="cpu", **options)) as pipe:
        for width in (2, 5):
            params = BeamSearchParams(beam_width=width, max_tokens=NEW_TOKENS, ignore_eos=True)
            answers = as_list(pipe.beam_search(list(conversations), params))
            for answer, conversation in zip(answers, conversations, strict=True):
                check(answer, oracle(conversation, None, num_beams=width))
        wait_until(lambda: pipe.engine.stats().num_used_kv_blocks == 0)


def test_a_search_that_ends_leaves_nothing(pipe: Pipeline) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=3)
    answers = as_list(pipe.beam_search(["a " * 5000, "the game"], params))
    assert answers[0].finish_reason == "error" and "session_len" in answers[0].text
    assert answers[1].finish_reason in ("stop", "length")
    assert not pipe.engine._delivery._live
    wait_until(lambda: pipe.engine.stats().num_used_kv_blocks == 0)


def test_wrong_options_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"beam_width": 0}, {"beam_width": 257}, {"max_tokens": 0}, {"temperature": 0.5}]
    for change in wrong:
        with pytest.raises(ConfigError, match=next(iter(change))):
            replace(BeamSearchParams(beam_width=2, max_tokens=3), **change)


def test_only_the_best_candidates_may_end() -> None:
    """A token that ends a text completes it only if it is among the `beam_width` best of all."""
    search = BeamSearch(BeamSearchParams(beam_width=1, max_tokens=5), {9}, max_tokens=5)
    search.advance([{1: -0.1, 9: -0.2}])
    assert (search.complete, [beam.token_ids for beam in search.running]) == ([], [(1,)])
    search.advance([{2: -1.0, 9: -0.5}])
    assert [beam.token_ids for beam in search.complete] == [(1, 9)]
