"""Several answers to one prompt: one preparation, one encode and one prefill, however steps are made and blocks are
cached, and whoever leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from asking import ask, collect, held, make_picture, parse

from seesay.config import EngineConfig
from seesay.engine.core.loop import EngineLoop
from seesay.engine.front.choices import choices_of
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.request_batch import RequestBatch
from seesay.values import GenerationRequest, OutputDelta

WAYS: dict[str, dict[str, Any]] = {
    "cached": {},
    "not cached": {"enable_prefix_caching": False},
    "chunks, ahead": {"max_prefill_token_num": 24, "async_scheduling": True},
    "one after another, not cached": {"max_batch_size": 1, "enable_prefix_caching": False},
    "int8 KV, process": {"kv_cache_dtype": "int8", "engine_process": True},
}
NUM_NEW = 5


@pytest.fixture(scope="module", params=WAYS)
def engine(request: pytest.FixtureRequest, tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    if request.param.endswith("process"):
        pytest.importorskip("msgspec")
        pytest.importorskip("zmq")
    config = EngineConfig(**{"device_type": "cpu", "block_size": 16, "engine_process": False, **WAYS[request.param]})
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as engine:
        yield engine


def make_request(prompt: Any, **options: Any) -> GenerationRequest:
    chosen = {"max_new_tokens": NUM_NEW, "ignore_eos": True, "do_sample": True, "random_seed": 4, **options}
    [request] = parse([prompt], **chosen)
    return request


def read(engine: AsyncEngine, requests: list[GenerationRequest]) -> dict[int, list[OutputDelta]]:
    found: dict[int, list[OutputDelta]] = {index: [] for index in range(len(requests))}
    with closing(RequestBatch(engine, requests).deltas()) as deltas:
        for index, delta in deltas:
            found[index].append(delta)
    return found


def ids_of(deltas: list[OutputDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def check_computed(engine: AsyncEngine, computed: int, expected: int, num_prompt: int) -> None:
    """Another process gets one request after another, and tells its counts now and then: the first may be over when
    the next comes, which then finds full blocks in the prefix cache. It never computes the prompt for all four."""
    if isinstance(engine.core, EngineLoop):
        assert computed == expected
    else:
        assert computed < expected + 2 * num_prompt


@pytest.mark.parametrize("has_picture", [False, True])
def test_the_prompt_is_computed_once(engine: AsyncEngine, has_picture: bool) -> None:
    text = "the game in the frame " * 12
    choices = choices_of(make_request((text, make_picture(60, 80, 7)) if has_picture else text), 4)
    alone = [ask(engine, [choice])[0].token_ids for choice in choices]
    assert len(set(map(tuple, alone))) > 1
    engine.reset_caches()
    before = engine.stats()
    deltas = collect(engine, choices)
    after = engine.stats()
    assert [ids_of(deltas[index]) for index in range(4)] == alone
    [num_prompt] = {delta.prompt_tokens for each in deltas for delta in each}
    computed = after.total_step_tokens - before.total_step_tokens
    # Each answer computes its tokens but the last, and each but the first the last token of the prompt.
    check_computed(engine, computed, num_prompt + 3 + 4 * (NUM_NEW - 1), num_prompt)
    assert after.total_encoder_items - before.total_encoder_items == has_picture
    cached = sorted(each[-1].usage.cached_tokens for each in deltas if each[-1].usage)
    assert cached[0] == 0
    if isinstance(engine.core, EngineLoop):
        assert sum(cached) == 4 * (num_prompt + NUM_NEW - 1) - computed
    assert after.num_used_kv_blocks == 0


def test_answers_of_one_token_share_the_prompt_of_one_that_is_over(engine: AsyncEngine) -> None:
    choices = choices_of(make_request("in the frame, the game " * 9, max_new_tokens=1), 4)
    engine.reset_caches()
    before = engine.stats().total_step_tokens
    deltas = collect(engine, choices)
    num_prompt = deltas[0][-1].prompt_tokens
    check_computed(engine, engine.stats().total_step_tokens - before, num_prompt + 3, num_prompt)
    assert engine.stats().num_used_kv_blocks == 0


def test_who_leaves_leaves_the_others_alone(engine: AsyncEngine) -> None:
    """Also the one that computes the prompt for all."""
    choices = choices_of(make_request("a frame of the game " * 10, max_new_tokens=12), 4)
    whole = {index: ids_of(deltas) for index, deltas in read(engine, choices).items()}
    for leaver in range(4):
        engine.reset_caches()
        asking = RequestBatch(engine, choices)
        found: dict[int, list[OutputDelta]] = {index: [] for index in range(4)}
        with closing(asking.deltas()) as deltas:
            for index, delta in deltas:
                if not any(found.values()):
                    asking.abort(leaver)
                found[index].append(delta)
        for index in range(4):
            if index != leaver or found[index][-1].finish_reason == "length":
                assert ids_of(found[index]) == whole[index]
        assert engine.stats().num_used_kv_blocks == 0
    with held(engine), closing(RequestBatch(engine, choices).deltas()):
        pass  # nobody reads: all are aborted
    assert [ask(engine, [choice])[0].token_ids for choice in choices[:1]] == [whole[0]]
