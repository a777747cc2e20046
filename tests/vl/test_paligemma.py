"""PaliGemma: prompts as its processor makes them, and what follows from prompts whose tokens see each other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import ask, make_message, make_picture, parse
from family_contract import edit_json, load_family
from oracles import load_oracle
from processing import process

from seesay import BeamSearchParams, Pipeline, pipeline
from seesay.config import EngineConfig, GenerationConfig
from seesay.engine.front.response import Response
from seesay.errors import CheckpointError, ErrorCode, RequestError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]
NEW_TOKENS = 12
GREEDY = GenerationConfig(max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, ignore_eos=True)
SMALL, TALL = make_picture(23, 31, 1), make_picture(50, 17, 2)
BLOCK_SIZE = 4


@pytest.fixture(scope="module")
def path(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As published: without a chat template."""
    target = tmp_path_factory.mktemp("paligemma") / "paligemma2"
    return shutil.copytree(tiny_checkpoint("paligemma2"), target, ignore=shutil.ignore_patterns("*.jinja"))


@pytest.fixture(scope="module")
def pipe(path: Path) -> Iterator[Pipeline]:
    config = EngineConfig(device_type="cpu", block_size=BLOCK_SIZE, engine_process=False)
    with pipeline(str(path), backend_config=config) as pipe:
        yield pipe


@pytest.fixture(scope="module")
def oracle(path: Path) -> tuple[Any, Any]:
    return load_oracle(path)


def generate(oracle: tuple[Any, Any], text: str, pictures: list[Any], **options: Any) -> tuple[list[int], list[int]]:
    """The prompt and the new tokens of Transformers, whose processor is given a text without markers."""
    model, processor = oracle
    inputs = process(processor, text)
    if pictures:
        inputs = processor(text=[text], images=[pictures], return_tensors="pt")
    with torch.inference_mode():
        made = model.generate(
            **inputs, do_sample=False, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, **options
        )
    ids = inputs["input_ids"][0].tolist()
    return ids, made[0, len(ids) :].tolist()


def one(found: Response | list[Response]) -> Response:
    assert isinstance(found, Response)
    return found


@pytest.mark.filterwarnings("ignore:You are passing both")
@pytest.mark.parametrize("pictures", [[SMALL], [SMALL, TALL], []], ids=len)
def test_pictures_come_first_and_a_line_break_last(
    pipe: Pipeline, oracle: tuple[Any, Any], pictures: list[Any]
) -> None:
    """Also where they stand behind the text in the message, as the published processor does it."""
    expected, answer = generate(oracle, "caption the frame", pictures)
    for parts in (["caption the frame", *pictures], [*pictures, "caption the frame"]):
        conversation = [make_message(*parts)]
        [request] = parse([conversation])
        assert pipe.engine.tokenize(request).result().tolist() == expected
        assert one(pipe(conversation, gen_config=GREEDY)).token_ids == answer
    raw = "<image>" * len(pictures) + "caption the frame"
    found = one(pipe((raw, pictures) if pictures else raw, gen_config=GREEDY, do_preprocess=False))
    assert (found.input_token_len, found.token_ids) == (len(expected), answer)


@pytest.mark.filterwarnings("ignore:You are passing both")
def test_a_conversation_is_one_prompt(pipe: Pipeline, oracle: tuple[Any, Any]) -> None:
    """Turns are lines; the pictures of all turns come first."""
    messages = [
        make_message("be brief", role="system"),
        make_message(SMALL, "what?"),
        make_message("a frame", role="assistant"),
        make_message("and this?", TALL),
    ]
    [request] = parse([messages])
    expected, answer = generate(oracle, "be brief\nwhat?\na frame\nand this?", [SMALL, TALL])
    assert pipe.engine.tokenize(request).result().tolist() == expected
    assert one(pipe(messages, gen_config=GREEDY)).token_ids == answer


def test_sessions_compute_each_turn_anew(pipe: Pipeline) -> None:
    session = pipe.session()
    pipe.chat(("what is the frame?", SMALL), session, GREEDY)
    pipe.chat("and the game?", session, GREEDY)
    assert session.response.usage is not None and session.response.usage.cached_tokens == 0
    history = [make_message(SMALL, "what is the frame?"), make_message(session.history[0][1], role="assistant")]
    alone = one(pipe([*history, make_message("and the game?")], gen_config=GREEDY))
    assert alone.token_ids == session.response.token_ids


def test_what_is_typed_stays_text(pipe: Pipeline) -> None:
    plain, typed = (
        one(pipe([make_message(SMALL, text)], gen_config=GREEDY)) for text in ("a frame", "a<image><s> frame")
    )
    assert plain.error is None and typed.error is None
    assert plain.usage is not None and typed.usage is not None
    assert plain.usage.media_tokens == typed.usage.media_tokens == 25
    assert typed.input_token_len == plain.input_token_len + len("<image><s>")
    places = pipe.engine.tokenize_text("<loc0012><seg003>", add_special_tokens=False)
    assert len(places) == 2 and pipe.tokenizer.decode(places) == "<loc0012><seg003>"


def test_only_the_same_prompt_is_found_in_the_cache(path: Path) -> None:
    """Keys at its beginning depend on its end. Answers continue the chain of blocks, for the same prompt alone."""
    text = "the game is in the frame, the frame is in the game"
    others = [text + "?", text[:-4] + "name", text[: len(text) // 2], "a" + text]
    options = EngineConfig(device_type="cpu", block_size=BLOCK_SIZE, engine_process=False, num_cpu_blocks=40)
    with pipeline(str(path), backend_config=options) as pipe:
        first = one(pipe([make_message(SMALL, text)], gen_config=GREEDY))
        for other in others:
            answer = one(pipe([make_message(SMALL, other)], gen_config=GREEDY))
            assert answer.usage is not None and answer.usage.cached_tokens == 0, other
        answer = one(pipe([make_message(TALL, text)], gen_config=GREEDY))
        assert answer.usage is not None and answer.usage.cached_tokens == 0
        again = one(pipe([make_message(SMALL, text)], gen_config=GREEDY))
        assert again.usage is not None and again.token_ids == first.token_ids
        assert again.usage.cached_tokens == (first.input_token_len - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_a_prompt_that_no_step_takes_is_refused(path: Path) -> None:
    """Whatever it is made of. One that fits is answered beyond the size of a step, also when it is preempted."""
    options = EngineConfig(device_type="cpu", block_size=BLOCK_SIZE, engine_process=False, max_prefill_token_num=40)
    with pipeline(str(path), backend_config=options) as pipe:
        answer = one(pipe([make_message(SMALL, "the frame")], gen_config=GREEDY))
        assert answer.error is None and 26 < answer.input_token_len <= 40 < answer.input_token_len + NEW_TOKENS
        ids = tuple([5] * 41)
        too_long = [[make_message(SMALL, "the frame is in the game")], [make_message(SMALL, TALL, "?")], "a " * 40]
        requests = [*parse(too_long, GREEDY), replace(parse(["?"], GREEDY)[0], prompt=ids)]
        for answer in ask(pipe.engine, requests):
            assert isinstance(answer.error, RequestError) and answer.error.code is ErrorCode.CONTEXT_TOO_LONG
            assert "tokens, but a step takes 40 (max_prefill_token_num)" in str(answer.error)
        assert pipe.engine.stats().total_encoder_items == 1, "refused before a picture was encoded"
        assert ask(pipe.engine, [replace(requests[-1], prompt=ids[:-1])])[0].error is None


def test_tokens_of_a_prompt_have_no_log_probabilities(pipe: Pipeline) -> None:
    reason = "prompt_logprobs: the tokens of a prompt have no log-probabilities for this model"
    config = GenerationConfig(max_new_tokens=2, prompt_logprobs=0)
    answer = one(pipe("the frame", gen_config=config))
    assert isinstance(answer.error, RequestError) and reason in str(answer.error)
    for given in ("the frame", [5, 6, 7]):
        with pytest.raises(RequestError, match=reason):
            pipe.get_ppl(given)
    scored = one(pipe("the frame", gen_config=GenerationConfig(max_new_tokens=2, logprobs=2)))
    assert scored.error is None and scored.logprobs is not None


def test_the_beginning_of_an_answer_is_refused(pipe: Pipeline) -> None:
    """In a prompt its tokens would be seen by those before them."""
    begun = [make_message(SMALL, "what?"), make_message("a fr", role="assistant")]
    [request] = parse([begun], GREEDY)
    [answer] = ask(pipe.engine, [replace(request, template_options={"continue_final": True})])
    assert isinstance(answer.error, RequestError) and "is the beginning of an answer" in str(answer.error)


@pytest.mark.filterwarnings("ignore:You are passing both")
@pytest.mark.parametrize("caching", [True, False])
def test_beams_continue_a_prompt_without_joining_it(path: Path, oracle: tuple[Any, Any], caching: bool) -> None:
    """Tokens of texts that go on are those of answers, which see nothing later; several answers share the prompt."""
    options = EngineConfig(
        device_type="cpu", block_size=BLOCK_SIZE, engine_process=False, enable_prefix_caching=caching
    )
    prompt = [make_message(SMALL, "the frame")]
    with pipeline(str(path), backend_config=options) as pipe:
        found = one(pipe.beam_search(prompt, BeamSearchParams(beam_width=3, max_tokens=NEW_TOKENS, ignore_eos=True)))
        _, expected = generate(oracle, "the frame", [SMALL], num_beams=3, eos_token_id=None)
        assert found.token_ids == expected
        before = pipe.engine.stats().total_step_tokens
        several = GenerationConfig(max_new_tokens=2, ignore_eos=True, n=3, do_sample=True, random_seed=1)
        answer = one(pipe([make_message(TALL, "the frame")], gen_config=several))
        assert len(answer.choices) == 3
        computed = pipe.engine.stats().total_step_tokens - before
        assert computed == answer.input_token_len + 3 - 1 + 3


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"image_token_index": 999_999}, "image_token_index=999999 is outside of the vocabulary"),
        ("config.json", {"projection_dim": 48}, "projection_dim=48 must be the decoder's hidden_size, 64"),
        (
            "processor_config.json",
            {"image_seq_length": 36},
            "image_seq_length=36 of the processor must be the tower's 25",
        ),
        ("processor_config.json", {"size": {"height": 24, "width": 20}}, "size"),
        ("tokenizer_config.json", {"bos_token": None}, "has no BOS token"),
    ],
)
def test_folders_that_do_not_fit_are_refused(
    path: Path, tmp_path: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    def edit(data: dict[str, Any]) -> None:
        (data["image_processor"] if file.startswith("processor") else data).update(changes)

    with pytest.raises(CheckpointError, match=message):
        load_family(edit_json(path, tmp_path / "edited", file, edit))
