"""Models that take audio answer as Transformers does: logits and greedy tokens in float32, in all ways of computing."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import ask, ask_in_order, loop_of, parse
from enrolment import ALL_AUDIO, AUDIO_MODULES
from omni_checkpoints import publish_omni
from PIL import Image
from sounds import make_tone, make_wav
from ultravox_checkpoints import load_ultravox, process_ultravox
from voxtral_checkpoints import process_conversation

from seesay import EngineConfig, GenerationConfig, MediaLimits, Pipeline, VisionConfig, load_audio
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.response import Response
from seesay.errors import RequestError
from seesay.values import AudioSamples, Modality
from seesay.vl.constants import AUDIO_TOKEN
from seesay.vl.modules.module_vision import ModuleVisionFamily
from seesay.vl.registry import find_family

Conversation = list[dict[str, Any]]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")
NEW_TOKENS = 32
ONE, SIX = GenerationConfig(max_new_tokens=1), GenerationConfig(max_new_tokens=6)
ONE_EACH = ("glmasr",)
"""Those whose processor takes one audio in a prompt."""
FILLED_UP = ("gemma3n", "phi4_multimodal", "qwen3_omni")
"""Those of which Transformers fills up a sound beside a longer one, so that its last row is another one; here each is
computed alone. Their prompts with several have sounds of the same length."""
WITH_PICTURES = ("gemma3n", "gemma4_audio", "qwen2_5_omni", "qwen3_omni")
OWN_PROCESSORS: Mapping[str, Callable[[Path, Conversation], Any]] = {
    "ultravox": process_ultravox,
    "voxtral": process_conversation,
}
"""Those whose processors Transformers has not, or not without further packages."""
OFTEN = ("qwen2_audio", *ALL_AUDIO)
"""One through modules, and those of families."""
NAMES = [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in (*ALL_AUDIO, *AUDIO_MODULES)]


def make_sound(seconds: float, pitch_hz: float) -> bytes:
    """A WAV with a tone in noise, which the two ways to resample nothing and to decode read alike."""
    tone = make_tone(seconds, pitch_hz=pitch_hz)
    return make_wav(tone + np.random.default_rng(int(pitch_hz)).normal(0, 0.05, len(tone)).clip(-0.3, 0.3))


SHORT, LONG, OTHER, TINY = (make_sound(*each) for each in ((1.03, 300), (1.9, 500), (1.1, 900), (0.43, 700)))
EQUAL = make_sound(1.1, 300), make_sound(1.1, 500)
"""Those in place of SHORT and LONG, as long as OTHER."""

RED = Image.fromarray(np.random.default_rng(3).integers(0, 256, (40, 52, 3), dtype=np.uint8))
BLUE = Image.fromarray(np.random.default_rng(4).integers(0, 256, (64, 36, 3), dtype=np.uint8))


def make_part(part: str | bytes | Image.Image) -> dict[str, Any]:
    kind = "text" if isinstance(part, str) else "audio" if isinstance(part, bytes) else "image"
    return {"type": kind, kind: part}


def make_turn(*parts: str | bytes | Image.Image, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [make_part(part) for part in parts]}


def make_conversations(name: str) -> list[Conversation]:
    short, long = EQUAL if name in FILLED_UP else (SHORT, LONG)
    found = [
        [make_turn("the game is in the frame")],
        [make_turn(TINY, "what?")],
        [make_turn("before ", LONG, " after")],
        [make_turn(OTHER, "the frame"), make_turn("a frame", role="assistant"), make_turn("in the game")],
    ]
    if name in WITH_PICTURES:
        found += [
            [make_turn(RED, "a frame")],
            [
                make_turn("see ", RED, " and ", short, "?"),
                make_turn("in", role="assistant"),
                make_turn(BLUE, OTHER, "?"),
            ],
        ]
    return found if name in ONE_EACH else [*found, [make_turn("see ", long, " and ", short, OTHER, " rest")]]


@dataclass
class Expected:
    input_ids: list[int]
    logits: torch.Tensor
    answer: list[int]


@dataclass
class Case:
    name: str
    path: Path
    expected: list[Expected]

    @property
    def tight_blocks(self) -> dict[str, int]:
        """As many as the longest conversation takes; or some prompts take, which together grow beyond that."""
        longest = max(len(each.input_ids) + len(each.answer) for each in self.expected)
        prompts = list(accumulate(len(each.input_ids) for each in self.expected))
        room = min(total for total in prompts if total >= longest) if self.name == "voxtral" else longest
        return {"block_size": 4, "num_gpu_blocks": -(-room // 4) + 4}


def find_process(path: Path, name: str) -> Callable[[Conversation], Any]:
    """The function that makes the model's input of a conversation."""
    if name in OWN_PROCESSORS:
        return partial(OWN_PROCESSORS[name], path)
    from transformers import AutoProcessor

    return partial(process_by_template, AutoProcessor.from_pretrained(path))


def process_by_template(processor: Any, messages: Conversation) -> Any:
    renderer = processor if processor.chat_template else processor.tokenizer
    text = renderer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    parts = [part for message in messages for part in message["content"]]
    sounds = [load_audio(part["audio"]).samples for part in parts if part["type"] == "audio"]
    pictures = [part["image"] for part in parts if part["type"] == "image"]
    given: dict[str, Any] = {"audio": sounds, "sampling_rate": 16000} if sounds else {}
    given |= {"images": pictures} if pictures else {}
    if given:
        return processor(text=[text], return_tensors="pt", **given)
    return processor.tokenizer([text], return_tensors="pt")


def load_model(path: Path, name: str) -> Any:
    if name == "ultravox":
        return load_ultravox(path)
    from transformers import AutoModelForMultimodalLM

    return AutoModelForMultimodalLM.from_pretrained(path, dtype=torch.float32).eval()


def answer_with_transformers(model: Any, every_input: Iterable[Any]) -> list[Expected]:
    found = []
    for inputs in every_input:
        with torch.inference_mode():
            logits = model(**inputs).logits[0].float()
            output = model.generate(
                **inputs, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1
            )
        ids = inputs["input_ids"][0].tolist()
        found.append(Expected(ids, logits, output[0, len(ids) :].tolist()))
    return found


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, tiny_checkpoint: Callable[[str], Path]) -> Case:
    path = tiny_checkpoint(request.param)
    inputs = map(find_process(path, request.param), make_conversations(request.param))
    return Case(request.param, path, answer_with_transformers(load_model(path, request.param), inputs))


with_models = pytest.mark.parametrize("case", NAMES, indirect=True)


def build(case: Case, **options: Any) -> AsyncEngine:
    return AsyncEngine(str(case.path), backend_config=EngineConfig(device_type="cpu", **options))


def make_requests(case: Case, **options: Any) -> list[Any]:
    return parse(make_conversations(case.name), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, **options)


def check(case: Case, outputs: Sequence[Response]) -> None:
    for index, (output, expected) in enumerate(zip(outputs, case.expected, strict=True)):
        assert output.error is None, (case.name, index, output.error)
        assert output.usage is not None and output.usage.prompt_tokens == len(expected.input_ids), (case.name, index)
        assert list(output.token_ids) == expected.answer, (case.name, index)


@with_models
def test_logits_equal_transformers(case: Case) -> None:
    """Alone, in chunks of 20 tokens. Transformers' own logits of Gemma 3n in float32 are 4e-4 from those in float64."""
    limit = 5e-4 if case.name == "gemma3n" else 1e-4
    with build(case, block_size=4, max_prefill_token_num=20) as engine:
        requests = make_requests(case, output_logits="all")
        for request, expected in zip(requests, case.expected, strict=True):
            [output] = ask(engine, [request])
            num_prompt = len(expected.input_ids)
            assert (output.logits[:num_prompt] - expected.logits).abs().max() < limit
            assert expected.logits.std() > 0.1, "logits that are all alike prove nothing"
            assert list(output.token_ids) == expected.answer


@with_models
def test_answers_depend_on_the_audio(case: Case) -> None:
    with build(case) as engine:
        [first, second] = ask(
            engine,
            parse([[make_turn(sound, "what?")] for sound in (LONG, make_sound(1.9, 501))], output_logits="all"),
        )
        assert (first.logits[-1] - second.logits[-1]).abs().max() > 1e-3


@with_models
def test_together_in_chunks_and_from_the_cache(case: Case) -> None:
    for options in ({"block_size": 16}, {"block_size": 4, "max_prefill_token_num": 7, "async_scheduling": True}):
        with build(case, **options) as engine:
            check(case, ask(engine, make_requests(case)))
            again = ask(engine, make_requests(case))
            check(case, again)
            assert all(output.usage is not None and output.usage.cached_tokens for output in again[1:])


@with_models
def test_preempted_in_the_middle(case: Case) -> None:
    for caching in (True, False):
        with build(case, enable_prefix_caching=caching, async_scheduling=not caching, **case.tight_blocks) as engine:
            check(case, ask_in_order(engine, make_requests(case)))
            assert loop_of(engine).stats().total_preemptions > 0, "the cache was meant to be too small"


@with_models
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_drawn_conversations_answer_beside_others_as_alone(case: Case, seed: int) -> None:
    """Texts, sounds and pictures in any order, with any schedule."""
    rng = random.Random(seed)
    media: list[bytes | Image.Image] = [SHORT, LONG, OTHER, *([RED, BLUE] if case.name in WITH_PICTURES else [])]
    drawn = [draw_conversation(rng, media, most=1 if case.name in ONE_EACH else 3) for _ in range(10)]
    requests = parse(drawn, max_new_tokens=6, min_new_tokens=6)
    with build(case, enable_prefix_caching=False) as engine:
        alone = [ask(engine, [request])[0] for request in requests]
    options: dict[str, Any] = {
        "block_size": rng.choice((4, 16)),
        "max_prefill_token_num": rng.choice((7, 30, 4096)),
        "max_batch_size": rng.choice((2, 16)),
        "async_scheduling": rng.random() < 0.5,
    }
    with build(case, **options) as engine:
        together = ask(engine, requests)
    for one, other, conversation in zip(alone, together, drawn, strict=True):
        assert one.error is None and list(one.token_ids) == list(other.token_ids), (options, conversation)


def draw_conversation(rng: random.Random, media: Sequence[bytes | Image.Image], *, most: int) -> Conversation:
    found: Conversation = []
    for turn in range(rng.choice((1, 1, 3))):
        is_answer = turn % 2 == 1
        chosen = [] if is_answer else rng.sample(media, rng.randint(0, min(most, len(media))))
        parts: list[str | bytes | Image.Image] = [*chosen, rng.choice(("the frame", "a game", "what?"))]
        rng.shuffle(parts)
        found.append(make_turn(*parts, role="assistant" if is_answer else "user"))
        most -= len(chosen)
    return found


@with_models
def test_in_a_process(case: Case) -> None:
    with build(case, engine_process=True, block_size=16) as engine:
        check(case, ask(engine, make_requests(case)))


@pytest.mark.parametrize("case", ALL_AUDIO, indirect=True)
def test_beside_its_encoder_in_a_process(case: Case) -> None:
    config = EngineConfig(device_type="cpu", block_size=16)
    with AsyncEngine(str(case.path), backend_config=config, vision_config=VisionConfig(own_process=True)) as engine:
        check(case, ask(engine, make_requests(case)))


@pytest.fixture(scope="module")
def pipe(tiny_checkpoint: Callable[[str], Path]) -> Iterator[Pipeline]:
    with Pipeline(str(tiny_checkpoint("qwen2_audio")), backend_config=EngineConfig(device_type="cpu")) as opened:
        yield opened


@pytest.mark.parametrize("name", AUDIO_MODULES)
def test_an_architecture_of_audio_runs_through_its_modules(name: str) -> None:
    assert find_family(AUDIO_MODULES[name]) is ModuleVisionFamily


def test_every_form_of_a_prompt_gives_the_same_tokens(pipe: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    path.write_bytes(LONG)
    samples = load_audio(LONG)
    prompts: list[Any] = [
        ("what?", str(path)),
        ("what?", samples),
        (f"{AUDIO_TOKEN}what?", path.as_uri()),
        [{"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": path.as_uri()}}, "what?"]}],
        [make_turn(LONG, "what?")],
    ]
    ids = [pipe.engine.tokenize(parse_one(prompt)).result().tolist() for prompt in prompts]
    assert all(each == ids[0] for each in ids), ids
    answers = [pipe(prompt, gen_config=SIX) for prompt in prompts]
    assert len({answer.text for answer in answers}) == 1
    assert all(answer.media[0].modality is Modality.AUDIO and answer.media[0].audio_s == 1.9 for answer in answers)
    usage = answers[0].usage
    assert usage is not None and usage.num_audios == 1 and usage.media_tokens == answers[0].media[0].num_tokens


def parse_one(prompt: Any) -> Any:
    from seesay.vl.prompts.conversation_parts import parse_prompts

    [request], _ = parse_prompts(prompt)
    if isinstance(request, RequestError):
        raise request
    return request


def test_the_rate_of_a_file_does_not_matter(pipe: Pipeline) -> None:
    """A second at another rate has as many tokens; the samples are resampled."""
    fast = make_wav(make_tone(1.0, rate_hz=44100), rate_hz=44100)
    first, second = pipe([("what?", AudioSamples(samples=make_tone(1.0), rate_hz=16000)), ("what?", load_audio(fast))])
    assert first.media[0].num_tokens == second.media[0].num_tokens > 0


def test_a_known_audio_is_not_encoded_again(pipe: Pipeline) -> None:
    sound = make_sound(0.8, 710)
    assert [pipe([make_turn(sound, text)], gen_config=ONE).media[0].is_cached for text in ("a", "b")] == [False, True]


def test_what_is_wrong_with_audio_is_said(pipe: Pipeline) -> None:
    def error(part: dict[str, Any]) -> str:
        answer = pipe([{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}], gen_config=ONE)
        assert answer.error is not None
        return str(answer.error)

    assert "messages[0].content[0].audio" in error({"type": "audio", "audio": b"RIFF0000WAVEjunk"})
    assert "not audio of a known kind" in error({"type": "audio", "audio": b"junk"})
    assert "unknown key 'fps'" in error({"type": "audio", "audio": LONG, "fps": 2})
    assert "refuses audio of 0.000 s" in error({"type": "audio", "audio": make_wav(np.zeros(3))})
    assert "takes the first 2 s alone: divide the audio" in error({"type": "audio", "audio": make_sound(2.01, 400)})
    assert pipe([make_turn(make_sound(2.0, 400), "what?")], gen_config=ONE).error is None
    assert "takes no image input" in error({"type": "image", "image": np.zeros((8, 8, 3), np.uint8)})


def test_all_audio_of_a_request_is_limited(tiny_checkpoint: Callable[[str], Path]) -> None:
    limits = MediaLimits(max_audio_s=3)
    config = EngineConfig(device_type="cpu")
    with Pipeline(str(tiny_checkpoint("qwen2_audio")), backend_config=config, media_limits=limits) as pipe:
        assert pipe([make_turn(LONG, "?")], gen_config=ONE).error is None
        error = pipe([make_turn(LONG, LONG, "?")], gen_config=ONE).error
        assert "more than 3 s together" in str(error)


def test_a_processor_that_divides_audio_takes_all_of_it(tiny_checkpoint: Callable[[str], Path]) -> None:
    with Pipeline(str(tiny_checkpoint("glmasr")), backend_config=EngineConfig(device_type="cpu")) as pipe:
        answers = [pipe([make_turn(make_sound(time_s, 400), "?")], gen_config=ONE) for time_s in (2.0, 5.0)]
    assert answers[0].media[0].num_tokens < answers[1].media[0].num_tokens


@pytest.mark.parametrize("name", ["qwen2_5_omni", pytest.param("qwen3_omni", marks=pytest.mark.slow)])
def test_a_published_folder_is_read_as_its_thinker(
    name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its tensors begin with `thinker.`, beside those of the model that speaks."""
    path = tmp_path / "published"
    shutil.copytree(tiny_checkpoint(name), path)
    publish_omni(path)
    requests = parse([[make_turn(OTHER, "and ", RED, "?")]], max_new_tokens=8, min_new_tokens=8)
    answers = []
    for folder in (tiny_checkpoint(name), path):
        with AsyncEngine(str(folder), backend_config=EngineConfig(device_type="cpu")) as engine:
            answers.append(ask(engine, requests)[0])
    assert answers[0].error is None and answers[0].token_ids == answers[1].token_ids


def test_a_model_without_audio_refuses_it(tiny_checkpoint: Callable[[str], Path]) -> None:
    config = EngineConfig(device_type="cpu")
    for name in ("llama", "llava"):
        with Pipeline(str(tiny_checkpoint(name)), backend_config=config) as pipe:
            assert "takes no audio input" in str(pipe([make_turn(LONG, "?")], gen_config=ONE).error)
