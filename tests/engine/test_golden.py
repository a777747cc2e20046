"""The whole stream against Transformers: every family and backbone, in float32, through the engine.

Alone, batched, chunked into 7-token pieces, one step ahead, preempted in the middle and a second time from the cache:
the same logits and the same 32 greedy tokens as Transformers computes in one piece. An engine in a thread does one of
these at a time; an engine process, of which each model has one, does all of them at once. Each model is compared alone,
in chunks, batched and from the cache; the other ways with all models, not only with `THOROUGH` ones, are slow tests.
Where slow tests are left out, `THOROUGH` models answer with 24 tokens, and the others with 8, which fill two blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest
from asking import (
    Expected,
    ask,
    ask_in_order,
    assert_same,
    loop_of,
    make_conversations,
    make_message,
    make_picture,
    make_video_prompt,
    parse,
    run_transformers,
    run_video_in_transformers,
)
from enrolment import (
    BACKBONES,
    FAMILIES,
    MODULES,
    OWN_CODE,
    PREFIX_LMS,
    VARIANTS,
    VIDEO_FAMILIES,
    VISION_MODULES,
    WITH_STATES,
    is_third,
    reference_of,
)
from pairs import leaves_out_slow

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.response import Response
from seesay.offline.pipeline import Pipeline
from seesay.values import GenerationRequest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")
NEW_TOKENS, MANY_TOKENS, FEW_TOKENS = 32, 24, 8
SHORT_LIMIT = 40
"""Of phi3_longrope: the answer to its second prompt, of 20 tokens, grows beyond it."""
TOLERANCE, WIDE_TOLERANCE = 1e-4, 4e-3
"""The second one is for delta nets, whose norms magnify errors of outputs near zero: with another size of chunks the
logits of Transformers differ by up to 2e-4, too."""
STEEP, STEEP_TOLERANCE = ("gemma4", "gemma4_small", "gemma4_large"), 1e-3
"""Models whose logits reach 70 and magnify roundings: those of Transformers in float32 differ from those in float64 by
up to 4e-4, and by 3e-4 where another kernel adds up attention, as on another device."""
IN_A_PROCESS = (
    "llama", "phi3_longrope", "gpt_oss", "aya_vision", "orbit_vl",
    *(name for name in FAMILIES if name not in WITH_STATES),
)  # fmt: skip
"""Every family, and three that run through Transformers' modules or their own: text with and without a place at which
all is computed again, and each kind of media."""
THOROUGH = (
    "llama", "mistral", "phi3_longrope", "qwen2_5_vl", "internvl", "llava_onevision", "paligemma2", "gpt_oss",
    "aya_vision", "mllama", "qwen3_5",
)  # fmt: skip
"""One of each kind: plain text; a sliding window; a text computed again; positions of several axes; tiles, videos;
arranged rows; prompts whose tokens see each other; modules of Transformers, with a tower and without; pictures beside
the text; layers with a state."""
THOROUGH_IN_A_PROCESS = ("llama", "qwen2_5_vl")
"""Two that differ in most."""
FORMS = ("thread", "process")
OpenEngine = Callable[..., AbstractContextManager[AsyncEngine]]


def in_forms(
    names: Iterable[str], forms: Iterable[str] = FORMS, *, in_thread: Container[str] = THOROUGH
) -> pytest.MarkDecorator:
    """Run a test with these models in these process forms. In a thread, models other than `in_thread` are slow tests,
    in a process those other than `THOROUGH_IN_A_PROCESS`."""
    always = {"thread": in_thread, "process": THOROUGH_IN_A_PROCESS}
    cases = [
        pytest.param(name, form, marks=() if name in always[form] else pytest.mark.slow)
        for name in names
        for form in forms
        if form == "thread" or name in IN_A_PROCESS
    ]
    return pytest.mark.parametrize(("case", "open_engine"), cases, indirect=True)


MODELS = (*BACKBONES, *FAMILIES, *MODULES, *VISION_MODULES, *OWN_CODE)
COMPARED = (*BACKBONES, *FAMILIES, *MODULES, *OWN_CODE, "aya_vision")
"""Those that are always compared alone, in chunks, and beside each other from the cache."""


def with_models(*names: str, models: Iterable[str] = MODELS) -> pytest.MarkDecorator:
    """Run a test with all models, in a thread. With others than `names` the tests are slow."""
    cases = [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in models]
    return pytest.mark.parametrize("case", cases, indirect=True)


IN_THREAD = with_models(*THOROUGH)
TIGHT = tuple(name for name in MODELS if name != "deepseek_ocr2")
"""Without one whose page has 257 tokens: a cache that holds one of its conversations holds all."""
ON_HOST = tuple(name for name in TIGHT if name not in WITH_STATES)


@dataclass
class Case:
    """A model and what Transformers makes of its prompts: answers of `num_tokens` tokens."""

    name: str
    path: Path
    num_tokens: int

    @cached_property
    def expected(self) -> list[Expected]:
        return run_transformers(self.path, self.name, new_tokens=self.num_tokens)

    @cached_property
    def video(self) -> Expected:
        """What Transformers makes of the prompt with a video."""
        return run_video_in_transformers(self.path, new_tokens=self.num_tokens)

    @property
    def tight_blocks(self) -> dict[str, int]:
        """Options for a cache that holds hardly more than the longest conversation, in small blocks."""
        return {"block_size": 4, "num_gpu_blocks": _count_blocks(max(map(_length, self.expected))) + 2}

    def chunk(self, num_tokens: int) -> dict[str, int]:
        """Options for steps of so many tokens; of a whole prompt where it is computed in one step."""
        longest = max(len(expected.input_ids) for expected in self.expected)
        return {"max_prefill_token_num": longest if self.name in PREFIX_LMS else num_tokens}

    @property
    def num_host_blocks(self) -> int:
        """Blocks on the host for all conversations, each with blocks of its own."""
        return sum(_count_blocks(_length(expected)) for expected in self.expected)

    @property
    def all_at_once(self) -> dict[str, Any]:
        """Options for short chunks, steps planned ahead, a cache that is too small, and blocks on the host."""
        options = {"num_cpu_blocks": self.num_host_blocks, **self.tight_blocks}
        if self.name in VIDEO_FAMILIES:
            options["num_gpu_blocks"] = max(options["num_gpu_blocks"], _count_blocks(_length(self.video)) + 2)
        return {**self.chunk(7), "async_scheduling": True, **options}


def _length(expected: Expected) -> int:
    return len(expected.input_ids) + len(expected.answer)


def _count_blocks(num_tokens: int) -> int:
    return -(-num_tokens // 4)


def _count_cacheable(num_tokens: int) -> int:
    """Return how many tokens of a prompt full blocks hold, without its last one, which is always computed."""
    return (num_tokens - 1) // 4 * 4


@pytest.fixture(scope="module")
def make_case(tiny_checkpoint: Callable[[str], Path], pytestconfig: pytest.Config) -> Callable[[str], Case]:
    def make(name: str) -> Case:
        few = MANY_TOKENS if name in THOROUGH else FEW_TOKENS
        return Case(name, tiny_checkpoint(name), few if leaves_out_slow(pytestconfig) else NEW_TOKENS)

    return make


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, make_case: Callable[[str], Case]) -> Case:
    return make_case(request.param)


@pytest.fixture(scope="module")
def engine_process(case: Case) -> Iterator[AsyncEngine]:
    """The one engine process of a model."""
    with build(case, engine_process=True, **case.all_at_once) as engine:
        yield engine


@pytest.fixture(scope="module")
def open_engine(request: pytest.FixtureRequest, case: Case) -> OpenEngine:
    """`open_engine(**options)`: an engine with these options, or the model's engine process with empty caches."""
    if request.param == "thread":
        return partial(build, case)
    engine: AsyncEngine = request.getfixturevalue("engine_process")

    def reset(**_options: Any) -> AbstractContextManager[AsyncEngine]:
        engine.reset_caches()
        return nullcontext(engine)

    return reset


def make_requests(case: Case, **options: Any) -> list[GenerationRequest]:
    num_tokens = {"max_new_tokens": case.num_tokens, "min_new_tokens": case.num_tokens}
    return parse(make_conversations(case.name), **num_tokens, **options)


def check(case: Case, outputs: Sequence[Response]) -> None:
    for index, (output, expected) in enumerate(zip(outputs, case.expected, strict=True)):
        assert output.error is None, (case.name, index, output.error)
        assert output.usage is not None
        assert output.usage.prompt_tokens == len(expected.input_ids), (case.name, index)
        assert list(output.token_ids) == expected.answer, (case.name, index)
        assert output.finish_reason == "length"


def check_logits(case: Case, engine: AsyncEngine) -> None:
    of_prompt = {} if case.name in PREFIX_LMS else {"prompt_logprobs": 3}
    for index, request in enumerate(make_requests(case, output_logits="all", **of_prompt)):
        output = ask(engine, [request])[0]
        expected = case.expected[index]
        num_prompt = len(expected.input_ids)
        assert output.logits.shape == (num_prompt + case.num_tokens - 1, expected.logits.shape[-1])
        difference = (output.logits[:num_prompt] - expected.logits).abs().max()
        assert difference < tolerance_of(case), (case.name, index, difference)
        assert expected.logits.std() > 0.1, "logits that are all alike prove nothing"
        assert list(output.token_ids) == expected.answer, (case.name, index)
        if of_prompt:
            check_prompt_logprobs(output, expected, tolerance_of(case))


def tolerance_of(case: Case) -> float:
    if case.name in WITH_STATES:
        return WIDE_TOLERANCE
    return STEEP_TOLERANCE if case.name in STEEP else TOLERANCE


def check_prompt_logprobs(output: Response, expected: Expected, tolerance: float) -> None:
    """Those of all positions but the first, the media's and those of tokens without logits, each with the three most
    likely tokens."""
    assert output.prompt_logprobs is not None and output.usage is not None
    assert len(output.prompt_logprobs) == len(expected.input_ids)
    has_entry = [token_id < expected.logits.shape[1] for token_id in expected.input_ids]
    num_left_out = sum(entry is None for entry in output.prompt_logprobs)
    assert num_left_out == 1 + max(output.usage.media_tokens, has_entry.count(False))
    logprobs = expected.logits.log_softmax(-1)
    for position, entry in enumerate(output.prompt_logprobs):
        if entry is not None:
            before = logprobs[position - 1]
            assert entry == pytest.approx({token_id: before[token_id].item() for token_id in entry}, abs=tolerance)
            assert expected.input_ids[position] in entry
            assert list(entry.values())[:3] == pytest.approx(before.topk(3).values.tolist(), abs=tolerance)


def build(case: Case, **options: Any) -> AsyncEngine:
    """A layout of a model's authors is asked with the template of the model that it is compared with."""
    config = EngineConfig(device_type="cpu", trust_remote_code=case.name in OWN_CODE, **options)
    reference = reference_of(case.path)
    template = None if reference == case.path else str(reference)
    return AsyncEngine(str(case.path), backend_config=config, chat_template_config=template)


@pytest.mark.every_case
@in_forms(MODELS, in_thread=COMPARED)
def test_logits_equal_transformers(case: Case, open_engine: OpenEngine) -> None:
    """Alone, in chunks of 50 tokens; and then together, from the cache."""
    with open_engine(block_size=4, **case.chunk(50)) as engine:
        check_logits(case, engine)
        outputs = ask(engine, make_requests(case))
        check(case, outputs)
        assert any(output.usage.cached_tokens for output in outputs if output.usage)


@in_forms(("qwen2_5_vl", "llava_onevision"), in_thread=MODELS)
def test_losses_of_conversations_equal_transformers(case: Case, open_engine: OpenEngine) -> None:
    """Of all their text tokens but the first, without the beginning of an answer; in one call and alone."""
    with open_engine(block_size=4, max_prefill_token_num=16) as engine:
        conversations = make_conversations(case.name)
        config = engine.checkpoint.config
        picture = config.get("image_token_id", config.get("image_token_index"))
        losses = []
        for request, expected in zip(parse(conversations), case.expected, strict=True):
            plain = replace(request, template_options={"add_generation_prompt": False})
            ids = engine.tokenize(plain).result()
            assert len(ids) < len(expected.input_ids) and expected.input_ids[: len(ids)] == ids.tolist()
            logprobs = expected.logits.log_softmax(-1)
            scores = [logprobs[i, ids[i + 1]].item() for i in range(len(ids) - 1) if ids[i + 1] != picture]
            losses.append(-sum(scores) / len(scores))
        pipe = Pipeline.from_engine(engine)
        assert pipe.get_ppl(conversations) == pytest.approx(losses, abs=TOLERANCE)
        assert pipe.get_ppl(conversations[-1]) == pytest.approx(losses[-1:], abs=TOLERANCE)
        text = "the game is in the frame"
        [raw], [ids_loss] = pipe.get_ppl(text, do_preprocess=False), pipe.get_ppl(engine.tokenize_text(text))
        assert raw == pytest.approx(ids_loss, abs=TOLERANCE)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if is_third(name) else ()) for name in VARIANTS]
)
def test_variants_equal_transformers(name: str, make_case: Callable[[str], Case]) -> None:
    """Other decoders of a family: alone with logits, then together and in chunks. The contract of families compares
    all of them, so the third of an architecture is slow here."""
    case = make_case(name)
    with build(case, block_size=16, **case.chunk(50)) as engine:
        check_logits(case, engine)
        check(case, ask(engine, make_requests(case)))


@in_forms(MODELS, in_thread=("llama", "qwen2_5_vl"))
def test_alone_and_from_the_cache(case: Case, open_engine: OpenEngine) -> None:
    with open_engine(block_size=4) as engine:
        requests = make_requests(case)
        check(case, [ask(engine, [request])[0] for request in requests])
        again = [ask(engine, [request])[0] for request in requests]
        check(case, again)
        for output in again:
            assert output.usage is not None
            cacheable = _count_cacheable(output.usage.prompt_tokens)
            assert output.usage.cached_tokens == cacheable > 0


@with_models("llama", "qwen2_5_vl")
def test_batched(case: Case) -> None:
    with build(case, block_size=16) as engine:
        check(case, ask(engine, make_requests(case)))


@IN_THREAD
def test_one_step_ahead(case: Case) -> None:
    with build(case, block_size=16, async_scheduling=True, **case.chunk(16)) as engine:
        for _ in range(2):  # the second time from the cache
            check(case, ask(engine, make_requests(case)))


@IN_THREAD
def test_chunked_into_seven_tokens(case: Case) -> None:
    with build(case, block_size=16, **case.chunk(7)) as engine:
        check(case, ask(engine, make_requests(case)))


@with_models(*THOROUGH, models=TIGHT)
def test_preempted_in_the_middle(case: Case) -> None:
    for caching in (True, False):
        options = {"enable_prefix_caching": caching, "async_scheduling": not caching, **case.tight_blocks}
        with build(case, **options) as engine:
            check(case, ask_in_order(engine, make_requests(case)))
            assert loop_of(engine).stats().total_preemptions > 0, "the cache was meant to be too small"


@with_models("llama", "qwen2_5_vl", models=ON_HOST)
def test_kept_on_the_host(case: Case) -> None:
    check_nothing_is_computed_again(case, is_ahead=False)


@with_models(*THOROUGH, models=ON_HOST)
def test_kept_on_the_host_with_steps_ahead(case: Case) -> None:
    check_nothing_is_computed_again(case, is_ahead=True)


def check_nothing_is_computed_again(case: Case, *, is_ahead: bool) -> None:
    with build(case, num_cpu_blocks=case.num_host_blocks, async_scheduling=is_ahead, **case.tight_blocks) as engine:
        outputs = check_kept_on_host(case, engine)
        stats = engine.stats()
    prompts = [output.usage.prompt_tokens for output in outputs if output.usage]
    # Each prompt is asked four times (`ask_in_order` asks for one token before), and twice answered at length. Its end,
    # which fills no block, is computed each time, and so are up to three tokens before the last of who is preempted.
    ends = sum(3 * (length - _count_cacheable(length)) for length in prompts) + 3 * stats.total_preemptions
    steps = sum(prompts) + ends + 2 * (case.num_tokens - 1) * len(prompts)
    outgrown = SHORT_LIMIT + 1 if case.name == "phi3_longrope" else 0  # once: the second time they are known
    assert stats.total_step_tokens <= steps + outgrown, "something was computed again"


@with_models("qwen3_5", models=WITH_STATES)
def test_states_in_a_process_with_steps_ahead(case: Case) -> None:
    """In short chunks, preempted in the middle, and a second time from the cache."""
    options = {**case.chunk(7), "async_scheduling": True, **case.tight_blocks}
    with build(case, engine_process=True, **options) as engine:
        for _ in range(2):
            check(case, ask_in_order(engine, make_requests(case)))
        assert engine.stats().total_preemptions > 0


@in_forms(IN_A_PROCESS, ["process"])
def test_a_process_does_all_of_this_at_once(case: Case, open_engine: OpenEngine) -> None:
    with open_engine() as engine:
        check_kept_on_host(case, engine)


def make_various_requests(name: str) -> list[GenerationRequest]:
    """All kinds of outputs, sampling options and media that the family takes."""
    greedy = {"max_new_tokens": 12, "ignore_eos": True}
    first, *others = make_conversations(name)
    requests = parse([first], output_last_hidden_state="all", output_logits="all", **greedy)
    requests += parse(others, logprobs=3, output_logits="generation", **greedy)
    if name in VIDEO_FAMILIES:
        requests += parse([make_video_prompt(name)], output_last_hidden_state="generation", **greedy)
    sampled = {"do_sample": True, "temperature": 0.9, "top_k": 20, "max_new_tokens": 20}
    for seed in (5, 6, 7):
        requests += parse(
            [others[-1]], random_seed=seed, presence_penalty=0.5, logit_bias={9: 3.0, 11: -4.0}, **sampled
        )
    requests += parse(["until"], stop_token_ids=[7, 9], bad_token_ids=[3], min_new_tokens=2, **greedy)
    return [*requests, *(replace(request, streams=False) for request in requests[:2])]


@in_forms(IN_A_PROCESS, ["process"])
def test_both_forms_answer_alike(case: Case, open_engine: OpenEngine) -> None:
    with open_engine() as engine, build(case, **case.all_at_once) as other:
        for request in make_various_requests(case.name):
            [answer], [expected] = ask(engine, [request]), ask(other, [request])
            assert_same(answer, expected)


def check_kept_on_host(case: Case, engine: AsyncEngine) -> list[Response]:
    """With a cache that holds hardly one of them, everything is found again: by the preempted and by those who ask a
    second time."""
    before = engine.stats()
    for is_known in (False, True):
        outputs = ask_in_order(engine, make_requests(case))
        check(case, outputs)
        for output in outputs:
            assert output.usage is not None
            cacheable = _count_cacheable(output.usage.prompt_tokens)
            assert not is_known or output.usage.cached_tokens == cacheable > 0
    stats = engine.stats()
    assert stats.total_preemptions > before.total_preemptions
    assert stats.total_host_kv_loads > before.total_host_kv_loads
    assert 0 < stats.num_used_host_kv_blocks <= stats.num_host_kv_blocks == case.num_host_blocks
    return outputs


@in_forms(FAMILIES, in_thread=FAMILIES)
def test_typed_image_token_moves_nothing(case: Case, open_engine: OpenEngine) -> None:
    """The literal spelling of the family's marker in a user's text stays text: the picture stays where it is."""
    with open_engine() as engine:
        picture = make_picture(40, 30, 7)
        marker = next(iter(engine.family.markers.values()))
        conversations = [[make_message(f"a{typed}b", picture, "c")] for typed in ("", marker)]
        plain, typed, alone = ask(engine, parse([*conversations, f"a{marker}b"], max_new_tokens=8, ignore_eos=True))
        assert plain.error is None and typed.error is None and alone.error is None
        assert plain.usage is not None and typed.usage is not None and alone.usage is not None
        assert typed.usage.media_tokens == plain.usage.media_tokens > 0
        assert typed.usage.prompt_tokens >= plain.usage.prompt_tokens + len(marker) // 2
        assert alone.usage.media_tokens == 0


@in_forms(VIDEO_FAMILIES, in_thread=FAMILIES)
def test_videos_equal_transformers(case: Case, open_engine: OpenEngine) -> None:
    prompt = make_video_prompt(case.name)
    expected = case.video
    with open_engine(block_size=16, max_prefill_token_num=50) as engine:
        requests = parse(
            [prompt],
            max_new_tokens=case.num_tokens,
            min_new_tokens=case.num_tokens,
            output_logits="all",
        )
        output = ask(engine, requests)[0]
    assert output.error is None, output.error
    num_prompt = len(expected.input_ids)
    assert (output.logits[:num_prompt] - expected.logits).abs().max() < tolerance_of(case)
    assert list(output.token_ids) == expected.answer
