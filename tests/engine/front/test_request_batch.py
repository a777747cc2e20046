"""One way to ask: in a thread and in an event loop, all at once and a few at a time, several answers to one prompt."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import ask, loop_of, make_picture, parse

from seesay.config import EngineConfig
from seesay.engine.front.choices import choices_of
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.request_batch import AsyncRequestBatch, LoopNotifier, RequestBatch
from seesay.errors import ErrorCode, RequestError
from seesay.values import GenerationRequest, OutputDelta

CPU = EngineConfig(device_type="cpu", block_size=16)


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=CPU) as engine:
        yield engine


@pytest.fixture
def built(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """The requests whose prompts were built."""
    found: list[GenerationRequest] = []
    build = engine._preparer.prompts.build

    def count(request: GenerationRequest, *others: Any, **options: Any) -> Any:
        found.append(request)
        return build(request, *others, **options)

    monkeypatch.setattr(engine._preparer.prompts, "build", count)
    return found


def make_request(prompt: Any, **options: Any) -> GenerationRequest:
    [request] = parse([prompt], **{"max_new_tokens": 5, "ignore_eos": True, **options})
    return request


def texts_of(deltas: list[tuple[int, OutputDelta]]) -> list[str]:
    texts: dict[int, str] = {}
    for index, delta in deltas:
        texts[index] = texts.get(index, "") + delta.text
    return [texts[index] for index in sorted(texts)]


def read(engine: AsyncEngine, requests: list[GenerationRequest]) -> list[tuple[int, OutputDelta]]:
    with closing(RequestBatch(engine, requests).deltas()) as deltas:
        return list(deltas)


def test_both_ways_give_the_same(engine: AsyncEngine) -> None:
    requests: list[GenerationRequest | RequestError] = [make_request(text) for text in ("a", "tell me", "b")]
    refused = RequestError(ErrorCode.INVALID_REQUEST, "no")
    requests.insert(1, refused)

    async def read_all() -> list[tuple[int, OutputDelta]]:
        async with aclosing(AsyncRequestBatch(engine, requests).deltas()) as deltas:
            return [delta async for delta in deltas]

    with closing(RequestBatch(engine, requests).deltas()) as deltas:
        in_thread = list(deltas)
    in_loop = asyncio.run(read_all())
    assert texts_of(in_thread) == texts_of(in_loop)
    for found in (in_thread, in_loop):
        finals = {index: delta for index, delta in found if delta.finish_reason is not None}
        assert len(finals) == 4 and finals[1].error is refused
        assert sum(delta.finish_reason is not None for _, delta in found) == 4


@pytest.mark.parametrize("has_picture", [False, True])
def test_a_prompt_of_several_answers_is_prepared_and_computed_once(
    engine: AsyncEngine, built: list[GenerationRequest], has_picture: bool
) -> None:
    text = "the game in the frame " * 12
    request = make_request((text, make_picture(60, 80, 7)) if has_picture else text, do_sample=True, random_seed=4)
    alone = [ask(engine, [choice])[0].text for choice in choices_of(request, 4)]
    assert len(set(alone)) > 1
    engine.reset_caches()
    built.clear()
    before = engine.stats()
    deltas = read(engine, choices_of(request, 4))
    after = engine.stats()
    assert texts_of(deltas) == alone
    assert len(built) == 1
    [num_prompt] = {delta.prompt_tokens for _, delta in deltas}
    assert num_prompt > 100
    computed = after.total_step_tokens - before.total_step_tokens
    # Each answer computes its tokens but the last, and each but the first the prompt's last block, which is not full.
    assert computed <= num_prompt + 3 * 16 + 4 * 4 < 2 * num_prompt
    usages = [delta.usage for _, delta in sorted(deltas, key=lambda each: each[0]) if delta.usage is not None]
    assert [usage.cached_tokens > 0 for usage in usages] == [False, True, True, True]
    assert len(engine._delivery._live) == 0


def test_choices_that_cannot_be_prepared_end_each_with_the_error(
    engine: AsyncEngine, built: list[GenerationRequest]
) -> None:
    request = make_request("hello " * 3000)
    bad = replace(request, gen_config=replace(request.gen_config, stop_token_ids=[10**6]))
    good = replace(request, prompt=make_request("hi").prompt)
    finals = dict(read(engine, [*choices_of(request, 2), bad, good]))
    codes = [error.code if isinstance(error := finals[i].error, RequestError) else None for i in range(4)]
    assert codes == [ErrorCode.CONTEXT_TOO_LONG, ErrorCode.CONTEXT_TOO_LONG, ErrorCode.INVALID_REQUEST, None]
    assert len(built) == 2


def test_a_few_at_a_time_share_their_prompt(engine: AsyncEngine, built: list[GenerationRequest]) -> None:
    """As over HTTP, where a caller has a few places: each answer that is over makes room for the next."""
    requests = choices_of(make_request("what do you see?", do_sample=True, random_seed=1), 5)
    alone = [ask(engine, [choice])[0].text for choice in requests]
    built.clear()
    most_running = 0

    async def read_all() -> list[tuple[int, OutputDelta]]:
        nonlocal most_running
        asking, found = AsyncRequestBatch(engine, requests), []
        threading.Thread(target=asking.call_soon, args=(lambda: asking.submit(2),)).start()
        async with aclosing(asking.submitted_deltas()) as deltas:
            async for delta in deltas:
                found.append(delta)
                most_running = max(most_running, asking.num_running + (delta[1].finish_reason is not None))
                if delta[1].finish_reason is not None and len(found) and asking._waiting:
                    asking.submit(1)
        return found

    assert texts_of(asyncio.run(read_all())) == alone
    assert len(built) == 1 and most_running == 2


def test_what_a_reader_is_told_to_do_fails_in_the_reader(engine: AsyncEngine) -> None:
    async def read_until_told() -> None:
        asking = AsyncRequestBatch(engine, [make_request("a", max_new_tokens=1500)])
        async with aclosing(asking.deltas()) as deltas:
            async for _ in deltas:
                threading.Thread(target=asking.end, args=(TimeoutError("too slow"),)).start()

    with pytest.raises(TimeoutError, match="too slow"):
        asyncio.run(asyncio.wait_for(read_until_told(), 60))
    wait_until_free(engine)


def test_leaving_aborts(engine: AsyncEngine) -> None:
    requests = [make_request(text, max_new_tokens=1500) for text in "ab"]
    with closing(RequestBatch(engine, requests).deltas()) as deltas:
        next(deltas)
    wait_until_free(engine)

    async def read_one() -> None:
        async with aclosing(AsyncRequestBatch(engine, requests).deltas()) as deltas:
            async for _ in deltas:
                return

    asyncio.run(read_one())
    wait_until_free(engine)


def wait_until_free(engine: AsyncEngine) -> None:
    deadline = time.monotonic() + 60
    while loop_of(engine)._live or engine._preparation.open.waiting:
        assert time.monotonic() < deadline, "the requests go on"
        time.sleep(0.01)


# --- mail for an event loop -------------------------------------------------------------------------------------------


class Mailbox:
    """In place of the queue of a reader."""

    def __init__(self) -> None:
        self.mail: list[Any] = []

    def put(self, mail: Any) -> None:
        self.mail.append(mail)


def test_one_wake_up_of_an_event_loop_hands_out_all_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    box: Any = Mailbox()
    woken: list[Any] = []
    with closing(asyncio.SelectorEventLoop()) as loop:
        wake = loop.call_soon_threadsafe

        def note(call: Callable[[], object]) -> None:
            woken.append(call)
            wake(call)

        monkeypatch.setattr(loop, "call_soon_threadsafe", note)
        notifier = LoopNotifier(loop)
        for turn in range(3):
            for index in range(5):
                notifier.put(box, OutputDelta(request_id=index))
            assert len(box.mail) == 5 * turn and len(woken) == turn + 1
            loop.run_until_complete(asyncio.sleep(0))
        assert [delta.request_id for delta in box.mail] == [*range(5)] * 3


def test_mail_for_an_event_loop_that_is_closed_is_not_kept() -> None:
    """The requests of its readers may go on for long."""
    box: Any = Mailbox()
    loop = asyncio.SelectorEventLoop()
    notifier = LoopNotifier(loop)
    loop.close()
    for _ in range(3):
        notifier.put(box, OutputDelta(request_id=0))
        assert not notifier._waiting and not box.mail
