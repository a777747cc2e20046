"""The whole stream against Transformers: every family and backbone, in float32, through the engine.

Alone, batched, chunked into 7-token pieces, one step ahead, preempted in the middle and a second time from the cache:
the same logits and the same 32 greedy tokens as Transformers computes in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asking import (
    BACKBONES,
    FAMILIES,
    Expected,
    ask,
    ask_in_order,
    loop_of,
    make_conversations,
    make_message,
    make_picture,
    parse,
    run_transformers,
    run_video_in_transformers,
)

from seesay.config import EngineConfig
from seesay.engine.engine import AsyncEngine
from seesay.engine.response import Response
from seesay.values import GenerationRequest

NEW_TOKENS = 32
SHORT_LIMIT = 40
"""Of phi3_longrope: the answer to its second prompt, of 20 tokens, grows beyond it."""
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Case:
    name: str
    path: Path
    expected: list[Expected]


@pytest.fixture(scope="module", params=(*BACKBONES, *FAMILIES))
def case(request: pytest.FixtureRequest, tiny_checkpoint: Callable[[str], Path]) -> Case:
    name = request.param
    path = tiny_checkpoint(name)
    return Case(name, path, run_transformers(path, name, new_tokens=NEW_TOKENS))


def make_requests(case: Case, **options: Any) -> list[GenerationRequest]:
    return parse(make_conversations(case.name), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, **options)


def check(case: Case, outputs: Sequence[Response]) -> None:
    for index, (output, expected) in enumerate(zip(outputs, case.expected, strict=True)):
        assert output.error is None, (case.name, index, output.error)
        assert output.usage is not None
        assert output.usage.prompt_tokens == len(expected.input_ids), (case.name, index)
        assert list(output.token_ids) == expected.answer, (case.name, index)
        assert output.finish_reason == "length"


def build(case: Case, **options: Any) -> AsyncEngine:
    return AsyncEngine(str(case.path), backend_config=EngineConfig(device_type="cpu", **options))


def test_logits_equal_transformers(case: Case) -> None:
    with build(case, block_size=16) as engine:
        for index, request in enumerate(make_requests(case, output_logits="all")):
            output = ask(engine, [request])[0]
            expected = case.expected[index]
            num_prompt = len(expected.input_ids)
            assert output.logits.shape == (num_prompt + NEW_TOKENS - 1, expected.logits.shape[-1])
            difference = (output.logits[:num_prompt] - expected.logits).abs().max()
            assert difference < TOLERANCE, (case.name, index, difference)
            assert expected.logits.std() > 0.1, "logits that are all alike prove nothing"


def test_alone_and_from_the_cache(case: Case) -> None:
    with build(case, block_size=4) as engine:
        requests = make_requests(case)
        check(case, [ask(engine, [request])[0] for request in requests])
        again = [ask(engine, [request])[0] for request in requests]
        check(case, again)
        for output in again:
            assert output.usage is not None
            cacheable = (output.usage.prompt_tokens - 1) // 4 * 4
            assert output.usage.cached_tokens == cacheable > 0


def test_batched(case: Case) -> None:
    with build(case, block_size=16) as engine:
        check(case, ask(engine, make_requests(case)))


def test_one_step_ahead(case: Case) -> None:
    with build(case, block_size=16, async_scheduling=True, max_prefill_token_num=16) as engine:
        for _ in range(2):  # the second time from the cache
            check(case, ask(engine, make_requests(case)))


def test_chunked_into_seven_tokens(case: Case) -> None:
    with build(case, block_size=16, max_prefill_token_num=7) as engine:
        check(case, ask(engine, make_requests(case)))


def test_preempted_in_the_middle(case: Case) -> None:
    longest = max(len(expected.input_ids) for expected in case.expected) + NEW_TOKENS
    num_blocks = -(-longest // 4) + 2
    for caching in (True, False):
        options = {"num_gpu_blocks": num_blocks, "enable_prefix_caching": caching, "async_scheduling": not caching}
        with build(case, block_size=4, **options) as engine:
            check(case, ask_in_order(engine, make_requests(case)))
            assert loop_of(engine).stats().total_preemptions > 0, "the cache was meant to be too small"


@pytest.mark.parametrize("is_ahead", (False, True))
def test_kept_on_the_host(case: Case, is_ahead: bool) -> None:
    """With a cache that holds hardly one of them, everything is found again: by the preempted and by those who ask a
    second time."""
    longest = max(len(expected.input_ids) for expected in case.expected) + NEW_TOKENS
    options = {"num_gpu_blocks": -(-longest // 4) + 2, "num_cpu_blocks": 500, "async_scheduling": is_ahead}
    with build(case, block_size=4, **options) as engine:
        for is_known in (False, True):
            outputs = ask_in_order(engine, make_requests(case))
            check(case, outputs)
            for output in outputs:
                assert output.usage is not None
                cacheable = (output.usage.prompt_tokens - 1) // 4 * 4
                assert not is_known or output.usage.cached_tokens == cacheable > 0
        stats = engine.stats()
        assert stats.total_preemptions > 0 and stats.total_host_kv_loads > 0
        assert 0 < stats.num_used_host_kv_blocks <= stats.num_host_kv_blocks == 500
        once = sum(output.usage.prompt_tokens + 2 * NEW_TOKENS for output in outputs if output.usage)
        partial_blocks = 4 * (len(outputs) + stats.total_preemptions)
        outgrown = SHORT_LIMIT + 1 if case.name == "phi3_longrope" else 0  # once: the second time they are known
        assert stats.total_step_tokens <= once + partial_blocks + outgrown, "something was computed again"


@pytest.mark.parametrize("name", FAMILIES)
def test_typed_image_token_moves_nothing(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    """The literal spelling of the family's marker in a user's text stays text: the picture stays where it is."""
    with AsyncEngine(str(tiny_checkpoint(name)), backend_config=EngineConfig(device_type="cpu")) as engine:
        picture = make_picture(40, 30, 7)
        marker = next(iter(engine.family.markers.values()))
        conversations = [[make_message(f"a{typed}b", picture, "c")] for typed in ("", marker)]
        plain, typed, alone = ask(engine, parse([*conversations, f"a{marker}b"], max_new_tokens=8, ignore_eos=True))
        assert plain.error is None and typed.error is None and alone.error is None
        assert plain.usage is not None and typed.usage is not None and alone.usage is not None
        assert typed.usage.media_tokens == plain.usage.media_tokens > 0
        assert typed.usage.prompt_tokens >= plain.usage.prompt_tokens + len(marker) // 2
        assert alone.usage.media_tokens == 0


@pytest.mark.parametrize("name", ("qwen2_vl", "qwen2_5_vl", "internvl"))
def test_videos_equal_transformers(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    """A video between texts and beside a picture, given as frames with their rate."""
    path = tiny_checkpoint(name)
    frames = [make_picture(37, 52, seed) for seed in range(6)]
    picture = make_picture(25, 30, 9)
    texts = ("see ", " move, then ", " rest")
    expected = run_video_in_transformers(path, texts, frames, picture, fps=2.0, new_tokens=NEW_TOKENS)
    content = [
        {"type": "text", "text": texts[0]},
        {"type": "video", "video": frames, "fps": 2.0},
        {"type": "text", "text": texts[1]},
        {"type": "image", "image": picture},
        {"type": "text", "text": texts[2]},
    ]
    if name == "internvl":
        content[1] = {"type": "video", "video": frames, "num_frames": len(frames)}
    config = EngineConfig(device_type="cpu", block_size=16, max_prefill_token_num=50)
    with AsyncEngine(str(path), backend_config=config) as engine:
        requests = parse(
            [[{"role": "user", "content": content}]],
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            output_logits="all",
        )
        output = ask(engine, requests)[0]
    assert output.error is None, output.error
    num_prompt = len(expected.input_ids)
    assert (output.logits[:num_prompt] - expected.logits).abs().max() < TOLERANCE
    assert list(output.token_ids) == expected.answer
