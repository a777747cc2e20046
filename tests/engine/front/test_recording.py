"""Lines of a recording: what each holds of a request and of its answer, what is left out, and how it is written."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from asking import make_picture
from demo_model import TOKENIZER, make_preparer
from recorded_lines import LINE
from sounds import make_video
from trial_script import ScriptedTrials
from waiting import wait_until

from seesay.config import EngineConfig, GenerationConfig
from seesay.config.generation import UNLIMITED_TOKENS
from seesay.engine.front import recording
from seesay.engine.front.live_answer import LiveAnswer
from seesay.engine.front.preparer import RequestPreparer
from seesay.engine.front.recording import (
    Recorder,
    append,
    check_path,
    make_recorder,
    media_folder,
    name_weights,
    write_line,
)
from seesay.engine.front.shared_prompts import SharedPrompts
from seesay.engine.front.text_frontend import TextFrontend
from seesay.errors import ConfigError, ErrorCode, RequestError
from seesay.templates import JinjaTemplate
from seesay.values import GenerationRequest, MediaPart, Message, Modality, OutputDelta, StageTimings, TextPart
from seesay.values.records import MediaRecord, RequestRecord
from seesay.version import __version__
from seesay.vl.constants import IMAGE_TOKEN, VIDEO_TOKEN

EOS = (TOKENIZER.token_id("<|im_end|>"), TOKENIZER.token_id("<|endoftext|>"))
BOX_END = TOKENIZER.token_id("<|box_end|>")
SMALL = {"min_pixels": 28 * 28}
REGEX = {"type": "regex_schema", "regex_schema": "(yes|no)"}
TALK = (Message(role="user", parts=(TextPart(text="hi"),)),)


def ask(prompt: Any = (1, 2, 3), **options: Any) -> GenerationRequest:
    of_request = {name: options.pop(name) for name in list(options) if name in GenerationRequest.__dataclass_fields__}
    return GenerationRequest(prompt=prompt, gen_config=GenerationConfig(**options), **of_request)


def end(*token_ids: int, reason: Any = "length", **options: Any) -> OutputDelta:
    return OutputDelta(request_id=0, token_ids=token_ids, finish_reason=reason, **options)


@pytest.fixture(scope="module")
def preparer() -> Iterator[RequestPreparer]:
    """Its template ends turns with <|box_end|>, and its answers may begin with thoughts."""
    template = JinjaTemplate("own", "{{ messages[0].content }}", stop_words=["<|box_end|>"])
    texts = TextFrontend(TOKENIZER, template, reasoning_parser="qwen3")
    preparer = make_preparer(texts, grammars=ScriptedTrials().as_trials)
    yield preparer
    preparer.close()


class Recording:
    """Records requests that a preparer prepares, and whose answers the test writes."""

    def __init__(self, preparer: RequestPreparer, path: Path) -> None:
        self.path = path
        self.passed_on: list[OutputDelta] = []
        self._preparer = preparer
        self.recorder = self.open()

    def open(self, *, with_media: bool = False, **options: Any) -> Recorder:
        eos: Any = EOS
        options = {"model": "m", "weights": bytes(range(200, 232)), "eos": eos, **options}
        self.recorder = Recorder(self.path, with_media=with_media, **options)
        return self.recorder

    def prepare(self, *requests: GenerationRequest, received_at: float = 0.0) -> dict[int, Any]:
        self._preparer.recorder = self.recorder
        try:
            return dict(
                self._preparer.prepare(
                    dict(enumerate(requests)), self.passed_on.append, received_at, SharedPrompts(requests)
                )
            )
        finally:
            self._preparer.recorder = None

    def begin(self, request: GenerationRequest, received_at: float = 0.0) -> LiveAnswer:
        [(_, answer)] = self.prepare(request, received_at=received_at).values()
        assert isinstance(answer, LiveAnswer)
        return answer

    def read(self) -> list[dict[str, Any]]:
        self.recorder.close()
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def record(self, request: GenerationRequest, *deltas: OutputDelta) -> dict[str, Any]:
        """Return the line of a request, the only one."""
        answer = self.begin(request)
        for delta in deltas or (end(),):
            answer.on_output(delta)
        [line] = self.read()
        return line


@pytest.fixture
def recorded(preparer: RequestPreparer, tmp_path: Path) -> Iterator[Recording]:
    found = Recording(preparer, tmp_path / "requests.jsonl")
    yield found
    found.recorder.close()


# --- what a line holds ------------------------------------------------------------------------------------------------


def test_a_line_holds_a_request_and_its_answer(recorded: Recording) -> None:
    request = ask((5, 6, 7), continuation=(8, 9), priority=4, streams=False, kept_tokens=("a",), cache_salt="secret")
    now = time.time()
    answer = recorded.begin(replace(request, owner="somebody"), received_at=time.perf_counter() - 1000)
    timings = StageTimings(time_to_first_token_s=0.25, total_s=1.5)
    deltas = [OutputDelta(request_id=0, token_ids=(1, 2)), end(3, timings=timings)]
    for delta in deltas:
        answer.on_output(delta)
    [line] = recorded.read()
    assert recorded.passed_on == deltas
    assert now - 1010 < line.pop("arrived_at") < now - 990
    pid = os.getpid()
    assert line == {
        "record": 1, "version": __version__, "model": "m", "weights": "c8c9cacbcccdcecf", "tokens": [5, 6, 7, 8, 9],
        "num_prompt_tokens": 5, "num_continued": 2, "kept_tokens": ["a"],
        "options": {"max_new_tokens": 512, "stop_token_ids": []},
        "priority": 4, "streams": False, "owner": f"{pid}-1", "salt": f"{pid}-2", "answer": [1, 2, 3],
        "finish_reason": "length", "first_token_s": 0.25, "total_s": 1.5,
    }  # fmt: skip


def test_names_are_numbers_and_the_same_ones_again(recorded: Recording) -> None:
    for owner, salt in (("a", ""), ("b", "x"), ("a", "x"), (None, "b")):
        recorded.begin(ask(owner=owner, cache_salt=salt)).on_output(end())
    pid = os.getpid()
    named = [(line.get("owner", ""), line.get("salt", "")) for line in recorded.read()]
    assert named == [(f"{pid}-1", ""), (f"{pid}-2", f"{pid}-3"), (f"{pid}-1", f"{pid}-3"), ("", f"{pid}-2")]


def test_names_that_are_many_are_forgotten(recorded: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_MAX_NAMES", 2)
    for owner in "abaca":
        recorded.begin(ask(owner=owner)).on_output(end())
    numbers = [line["owner"].partition("-")[2] for line in recorded.read()]
    assert numbers == ["1", "2", "1", "3", "4"], "no other has the number of one that was forgotten"


def test_options_without_their_defaults(recorded: Recording) -> None:
    line = recorded.record(
        ask(best_of=1, output_logits="all", output_last_hidden_state="all", top_k=3, max_new_tokens=9, logprobs=0)
    )
    assert line["options"] == {"max_new_tokens": 9, "stop_token_ids": [], "top_k": 3, "logprobs": 0}


def test_seeds_that_were_drawn_are_options(recorded: Recording) -> None:
    [(token_request, answer)] = recorded.prepare(ask(do_sample=True)).values()
    answer.on_output(end())
    assert token_request.params.seed is not None
    assert recorded.read()[0]["options"]["random_seed"] == token_request.params.seed


def test_what_a_template_adds_is_an_option(recorded: Recording) -> None:
    options = recorded.record(ask(TALK, stop_words=["b", "a", "<|im_start|>"], stop_token_ids=[4]))["options"]
    assert options["stop_words"] == ["a", "b"]
    assert options["stop_token_ids"] == [4, TOKENIZER.token_id("<|im_start|>"), BOX_END]


def test_an_answer_that_ignores_its_end_ignores_that_of_the_template(recorded: Recording) -> None:
    assert recorded.record(ask(TALK, ignore_eos=True))["options"]["stop_token_ids"] == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, None), ({"response_format": REGEX}, UNLIMITED_TOKENS), ({"max_thinking_tokens": 7}, 7)],
)
def test_a_thought_before_a_grammar_comes_again(
    recorded: Recording, options: dict[str, Any], expected: int | None
) -> None:
    line = recorded.record(ask(TALK, **options))
    assert line["options"].get("max_thinking_tokens") == expected


def test_functions_of_the_program_are_not_repeated(recorded: Recording) -> None:
    line = recorded.record(ask(logits_processors=["a:b", lambda _, logits: logits]))
    assert "logits_processors" not in line["options"] and "functions of the program" in line["unrepeatable"]


def test_functions_that_have_names_are_repeated(recorded: Recording) -> None:
    line = recorded.record(ask(logits_processors=["a:b", "a:c"]))
    assert line["options"]["logits_processors"] == ["a:b", "a:c"] and "unrepeatable" not in line


def test_options_that_are_not_json_make_a_request_unrepeatable() -> None:
    media = [MediaRecord(position=1, modality="video", sha256="a", num_tokens=9)]
    for value in (object(), float("nan")):
        record = RequestRecord(**{**LINE, "options": {"response_format": value}, "media": media})
        line = json.loads(write_line(record))
        assert not {"options", "media"} & {*line} and "not JSON" in line["unrepeatable"]


def test_numbers_of_numpy_and_media_are_json() -> None:
    item = MediaRecord(position=1, modality="video", sha256="a", num_tokens=9, options={"fps": np.float64(1.5)})
    options = {"logit_bias": MappingProxyType({3: 1.5})}
    changes: dict[str, Any] = {"answer": [np.int64(4)], "media": [item], "priority": np.int64(0), "options": options}
    record = RequestRecord(**{**LINE, **changes})
    data = write_line(record)
    assert data.endswith(b"\n") and b" " not in data and json.loads(data) == {
        **LINE, "answer": [4], "streams": True, "options": {"logit_bias": {"3": 1.5}},
        "media": [{"position": 1, "modality": "video", "sha256": "a", "num_tokens": 9, "options": {"fps": 1.5}}],
    }  # fmt: skip


# --- which requests, and how they end ---------------------------------------------------------------------------------


def test_only_requests_that_are_answered_are_recorded(recorded: Recording) -> None:
    requests = [ask(wants_answer=False), ask(max_length=2), ask(top_k=7), ask(max_new_tokens=8)]
    found = recorded.prepare(*requests)
    assert isinstance(found[1], RequestError)
    for number in (0, 2, 3):
        found[number][1].on_output(end(number))
    lines = recorded.read()
    assert [line["options"].get("top_k") for line in lines] == [7, None]
    assert [line["answer"] for line in lines] == [[2], [3]] and len(recorded.passed_on) == 3


def test_none_is_recorded_where_none_is_answered(recorded: Recording, caplog: pytest.LogCaptureFixture) -> None:
    recorded.prepare(ask(wants_answer=False))[0][1].on_output(end())
    assert not recorded.recorder._thread._threads and not caplog.records


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, None), (RequestError(ErrorCode.OUT_OF_MEMORY, "no"), str(ErrorCode.OUT_OF_MEMORY)),
     (ValueError("no"), "internal_error")],
)  # fmt: skip
def test_errors_are_codes(recorded: Recording, error: Exception | None, code: str | None) -> None:
    line = recorded.record(ask(), end(reason="error", error=error))
    assert line.get("error") == code and line["finish_reason"] == "error"
    assert 0 < line["total_s"] < 60 and "first_token_s" not in line


def test_a_receiver_that_fails_loses_no_line(recorded: Recording) -> None:
    [(_, answer)] = recorded.prepare(ask()).values()

    def fail(delta: OutputDelta) -> None:
        raise SystemExit

    answer.on_output._pass_on = fail
    for delta in (OutputDelta(request_id=0, token_ids=(1,)), end(2)):
        with pytest.raises(SystemExit):
            answer.on_output(delta)
    assert [line["answer"] for line in recorded.read()] == [[1, 2]]


@pytest.mark.parametrize("keeps", [True, False])
def test_the_end_of_a_turn_that_is_shown_is_the_last_token(recorded: Recording, keeps: bool) -> None:
    """It is a stop token of the request when that is repeated, and remains in the answer then."""
    request = ask(TALK, include_stop_str_in_output=keeps)
    line = recorded.record(request, end(1, reason="stop", stop_reason=BOX_END))
    assert line["answer"] == ([1, BOX_END] if keeps else [1])


def test_another_end_is_not(recorded: Recording) -> None:
    request = ask(TALK, include_stop_str_in_output=True)
    assert recorded.record(request, end(1, reason="stop", stop_reason=EOS[0]))["answer"] == [1]


def test_a_fault_of_the_recorder_stops_no_request(
    recorded: Recording, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(Recorder, "_describe", fail)
    recorded.begin(ask()).on_output(end())
    assert "a request cannot be recorded" in caplog.text and len(recorded.passed_on) == 1
    assert not recorded.path.exists()


# --- media ------------------------------------------------------------------------------------------------------------


def make_png(folder: Path) -> Path:
    path = folder / "picture.png"
    make_picture(56, 84, 2).save(path)
    return path


def make_media(folder: Path) -> list[MediaPart]:
    """A picture without a file, one in a file, a video in a file."""
    (folder / "video.mp4").write_bytes(make_video(None))
    return [
        MediaPart(modality=Modality.IMAGE, source=make_picture(56, 56, 1), options=SMALL),
        MediaPart(modality=Modality.IMAGE, source=str(make_png(folder)), options=SMALL),
        MediaPart(modality=Modality.VIDEO, source=str(folder / "video.mp4"), options={"num_frames": 2, **SMALL}),
    ]


def ask_about(media: Sequence[MediaPart], **options: Any) -> GenerationRequest:
    tokens = {Modality.IMAGE: IMAGE_TOKEN, Modality.VIDEO: VIDEO_TOKEN}
    return ask("a" + "b".join(tokens[part.modality] for part in media) + "c", media=tuple(media), **options)


@pytest.mark.parametrize("with_media", [True, False])
def test_media_are_named_by_their_files(recorded: Recording, tmp_path: Path, with_media: bool) -> None:
    recorded.open(with_media=with_media)
    parts = make_media(tmp_path)
    for found in recorded.prepare(ask_about(parts), ask_about(parts, top_k=3)).values():
        found[1].on_output(end())
    first, second = recorded.read()
    assert first["media"] == second["media"]
    [a], [b], [c] = map(TOKENIZER.encode, "abc")
    assert first["tokens"] == [a, 0, b, 0, b, 0, c]
    _, file, video = first["media"]
    assert [each["position"] for each in first["media"]] == [1, 3, 5]
    assert [each["num_tokens"] for each in first["media"]] == [6, 8, 3] and first["num_prompt_tokens"] == 21
    assert [each["modality"] for each in first["media"]] == ["image", "image", "video"]
    assert (file["sha256"], file["options"]) == (hashlib.sha256(make_png(tmp_path).read_bytes()).hexdigest(), SMALL)
    assert video["sha256"] == hashlib.sha256((tmp_path / "video.mp4").read_bytes()).hexdigest()
    assert video["options"] == {"num_frames": 2, **SMALL}
    folder = media_folder(recorded.path)
    assert folder.name == "requests.jsonl.media" and folder.exists() == with_media
    if with_media:
        assert {path.name for path in folder.iterdir()} == {each["sha256"] for each in first["media"]}
        for path in folder.iterdir():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_files_that_are_there_are_not_written_again(recorded: Recording, tmp_path: Path) -> None:
    recorded.open(with_media=True)
    folder = media_folder(recorded.path)
    folder.mkdir()
    name = hashlib.sha256(make_png(tmp_path).read_bytes()).hexdigest()
    (folder / name).write_bytes(b"there")
    line = recorded.record(ask_about(make_media(tmp_path)[:2]))
    assert (folder / name).read_bytes() == b"there" and len([*folder.iterdir()]) == len(line["media"]) == 2


def test_frames_that_are_in_no_file_are_not_repeated(recorded: Recording) -> None:
    frames = [make_picture(56, 56, seed) for seed in range(2)]
    video = MediaPart(modality=Modality.VIDEO, source=frames, options={"fps": 2.0, **SMALL})
    line = recorded.record(ask_about([video], logits_processors=[lambda _, logits: logits]))
    assert "media" not in line and "frames of a video" in line["unrepeatable"], "the first reason"


def test_a_file_that_is_gone_is_not_repeated(recorded: Recording, tmp_path: Path, preparer: RequestPreparer) -> None:
    video = tmp_path / "video.mp4"
    video.write_bytes(make_video(None))
    part = MediaPart(modality=Modality.VIDEO, source=str(video), options={"num_frames": 2, **SMALL})
    request = ask_about([part])
    _, media = preparer.prompts.build(request)
    found = preparer.prepare({0: request}, recorded.passed_on.append, 0.0, SharedPrompts([request]))
    video.unlink()
    recorded.recorder.watch({0: request}, found, media)
    _, answer = found[0]  # type: ignore[misc]
    answer.on_output(end())
    [line] = recorded.read()
    assert "No such file" in line["unrepeatable"] and "media" not in line


# --- how much ---------------------------------------------------------------------------------------------------------

FACTS = {name: value for name, value in LINE.items() if name != "record"} | {"answer": [1] * 5}
SIZE = 8 * (3 + 5)
"""Of the tokens of such a line."""


@pytest.mark.parametrize("num_more", [0, 1])
def test_a_recording_has_a_largest_size(recorded: Recording, caplog: pytest.LogCaptureFixture, num_more: int) -> None:
    content = b"x" * 10
    files = [(hashlib.sha256(content).hexdigest(), content)]
    recorder = recorded.open(with_media=True, max_bytes=2 * SIZE + 10 - num_more)
    recorder.add(FACTS, ())
    wait_until(lambda: not recorder._num_waiting)
    for _ in range(3):
        recorder.add(FACTS, files)
        wait_until(lambda: not recorder._num_waiting)
    num_written = 2 - num_more
    assert len(recorded.read()) == num_written
    assert caplog.text.count("there is no room for all requests any more") == 1
    assert f": {4 - num_written} requests are missing" in caplog.text


def test_smaller_requests_still_fit_and_nothing_is_said_again(
    recorded: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = recorded.open(max_bytes=2 * SIZE)
    for num_tokens in (5, 40, 5):
        recorder.add({**FACTS, "answer": [1] * num_tokens}, ())
    assert len(recorded.read()) == 2 and caplog.text.count("there is no room") == 1


def test_a_recording_that_is_whole_says_nothing(recorded: Recording, caplog: pytest.LogCaptureFixture) -> None:
    recorded.recorder.add(FACTS, ())
    assert len(recorded.read()) == 1 and not caplog.records


@pytest.fixture
def may_write(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is written before this is set."""
    event = threading.Event()

    def append_later(path: Path, data: bytes) -> None:
        assert event.wait(60)
        append(path, data)

    monkeypatch.setattr(recording, "append", append_later)
    yield event
    event.set()


@pytest.mark.parametrize("limits", [{"max_bytes": 3 * SIZE}, {}])
def test_what_waits_has_a_largest_size(
    recorded: Recording,
    may_write: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, Any],
) -> None:
    if not limits:
        monkeypatch.setattr(recording, "MAX_WAITING_BYTES", 3 * SIZE)
    recorder = recorded.open(**limits)
    for _ in range(4):
        recorder.add(FACTS, ())
    assert (recorder._num_waiting, recorder._num_lost) == (3 * SIZE, 1)
    may_write.set()
    wait_until(lambda: not recorder._num_waiting)
    recorder.add(FACTS, ())
    assert len(recorded.read()) == (3 if limits else 4)


def test_one_thread_writes(recorded: Recording, may_write: threading.Event) -> None:
    for _ in range(3):
        recorded.recorder.add(FACTS, ())
    assert [thread.name for thread in recorded.recorder._thread._threads] == ["seesay-record_0"]
    may_write.set()


def test_paths_of_files_take_no_memory(recorded: Recording, tmp_path: Path) -> None:
    recorder = recorded.open(with_media=True, max_bytes=SIZE)
    recorder.add(FACTS, [("name", make_png(tmp_path))])
    assert len(recorded.read()) == 1
    assert (media_folder(recorded.path) / "name").read_bytes() == make_png(tmp_path).read_bytes()


def test_what_cannot_be_written_is_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(tmp_path / "gone" / "file", with_media=False, model="m", weights=b"", eos=(), max_bytes=SIZE)
    recorder.add(FACTS, ())
    wait_until(lambda: not recorder._num_waiting)
    recorder.add(FACTS, ())
    recorder.close()
    recorder.add(FACTS, ())
    assert "a request cannot be recorded: [Errno 2]" in caplog.text
    assert ": 2 requests are missing" in caplog.text


def test_what_comes_after_the_end_is_missing(recorded: Recording, caplog: pytest.LogCaptureFixture) -> None:
    recorded.recorder.close()
    recorded.recorder.add(FACTS, ())
    recorded.recorder.close()
    assert ": 1 requests are missing" in caplog.text and not recorded.path.exists()


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("before\n")
    path.chmod(0o644)
    append(path, b"after\n")
    assert path.read_text() == "before\nafter\n" and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_file_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []

    def note(file: int, mode: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(file).st_mode))

    monkeypatch.setattr(os, "fchmod", note)
    check_path(tmp_path / "requests.jsonl")
    assert modes == [0o600, 0o600], "from the beginning"


def test_a_line_is_written_by_one_call_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "requests.jsonl"
    with pytest.raises(OSError, match="not a regular file"):
        append(Path(os.devnull), b"line")
    with pytest.raises(OSError, match="No space left"):
        append(Path(path), Half(b"line"))


class Half(bytes):
    """Bytes of which a file takes fewer than there are."""

    def __len__(self) -> int:
        return 2 * super().__len__()


@pytest.mark.parametrize(
    ("before", "after"), [(b"", b""), (b"\n", b"\n"), (b"ab\n", b"ab\n"), (b"a", b"a\n"), (b"a\nbc", b"a\nbc\n")]
)
def test_a_line_that_is_cut_off_is_ended(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(before)
    for _ in range(2):
        check_path(str(path))
        assert path.read_bytes() == after


@pytest.mark.parametrize(
    ("name", "reason"),
    [("", "Is a directory"), ("none/file", "No such file"), ("link", "symbolic links"), ("a\0", "null")],
)
def test_where_nothing_can_be_written(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError) as caught:
        check_path(f"{tmp_path}/{name}")
    assert f"{name!r}"[1:] in str(caught.value) and reason in str(caught.value) and "Errno" not in str(caught.value)


def test_requests_are_recorded_where_the_configuration_says_so(tmp_path: Path) -> None:
    assert make_recorder(EngineConfig(), "m", b"", ()) is None
    path = tmp_path / "requests.jsonl"
    recorder = make_recorder(EngineConfig(record=path, record_media=True), "m", b"", ())
    assert recorder is not None
    recorder.add(FACTS, [("name", b"x")])
    recorder.close()
    assert (media_folder(path) / "name").read_bytes() == b"x"
    assert name_weights(bytes(range(32))) == "0001020304050607"
