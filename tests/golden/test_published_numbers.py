"""Every family that Transformers lacks computes what its published code computed: prompts, pixels, rows and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from golden.cases import CASES, NUM_TOKENS, Case
from golden.record import EMBEDDING, Record, note_pixels, note_rows, read, write_checkpoint

from seesay import GenerationConfig, Pipeline, PytorchEngineConfig, pipeline
from seesay.checkpoint import Checkpoint
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import GenerationRequest, MultimodalInput
from seesay.vl.prompts.conversation_parts import parse_prompts
from seesay.vl.registry import find_family

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent.name for path in HERE.glob("*/numbers.json"))
RECORDS: Mapping[str, Mapping[str, Record]] = {name: read(HERE / name) for name in FOLDERS}
PIXELS, SUM, ROWS = 1e-6, 3e-7, 2e-4
"""Largest relative difference of sums of pixels, absolute one for each pixel of them, and that of a row's values,
relative to the largest of them, or absolute below one."""


class Answering:
    """A checkpoint of the formula, open in seesay."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, write_checkpoint(HERE / name, path)
        config = PytorchEngineConfig(device_type="cpu", dtype="float32", block_size=16, session_len=8192)
        self.pipe: Pipeline = pipeline(str(self.path), backend_config=config)
        checkpoint, tokenizer = Checkpoint.load(self.path), Tokenizer.load(self.path)
        family = find_family(checkpoint.architecture, checkpoint.tower_type)(checkpoint, tokenizer)
        self.encoder: Any = family.build_encoder(torch.device("cpu"), torch.float32) if family.modalities else None

    def record(self, case: Case) -> Record:
        """Return what seesay makes of a case, as the published code's is recorded."""
        messages = make_messages(case)
        made = self._build(messages)
        ids, features = made.token_ids.copy(), [item.features for item in made.items]
        for item in made.items:
            ids[item.slots] = EMBEDDING
        rows = [note_rows(rows) for rows in self.encoder.encode(features)] if features else []
        pixels = [self.encoder.load_pixels(each) for each in features]
        config = GenerationConfig(max_new_tokens=NUM_TOKENS, do_sample=False)
        answer = self.pipe(messages, gen_config=config)
        assert answer.error is None, answer.error
        return Record(ids=ids.tolist(), pixels=note_pixels(pixels), rows=rows, tokens=list(answer.token_ids))

    def _build(self, messages: list[dict[str, Any]]) -> MultimodalInput:
        [request], _ = parse_prompts([messages])
        assert isinstance(request, GenerationRequest), request
        prompt, _ = self.pipe.engine._preparer.prompts.build(request)
        return prompt


def make_messages(case: Case) -> list[dict[str, Any]]:
    """Return a case as a conversation of the OpenAI form."""
    messages: list[dict[str, Any]] = []
    for turn in case.turns:
        drawn = [picture.draw() for picture in turn.pictures]
        options = dict(case.options)
        media: list[dict[str, Any]] = [{"type": "image", "image": picture, **options} for picture in drawn]
        if turn.is_video:
            media = [{"type": "video", "video": drawn, **options}]
        messages.append({"role": "user", "content": [*media, {"type": "text", "text": turn.question}]})
        if turn.answer is not None:
            messages.append({"role": "assistant", "content": turn.answer})
    return messages


@pytest.fixture(scope="module", params=FOLDERS)
def answering(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answering]:
    opened = Answering(request.param, tmp_path_factory.mktemp(request.param) / request.param)
    yield opened
    opened.pipe.close()


def find_differences(ours: Record, theirs: Record) -> dict[str, str]:
    """Return what differs, by the field of the record."""
    found: dict[str, str] = {}
    if ours.ids != theirs.ids:
        found["ids"] = f"{ours.ids} instead of {theirs.ids}"
    rounding = SUM * theirs.pixels[0]  # sums of pixels with both signs may be near zero
    if ours.pixels != pytest.approx(theirs.pixels, rel=PIXELS, abs=rounding):
        found["pixels"] = f"{ours.pixels} instead of {theirs.pixels}"
    if [number for number, _ in ours.rows] != [number for number, _ in theirs.rows]:
        found["rows"] = "another number of rows"
    elif theirs.rows:
        values = [torch.tensor([values for _, values in each.rows]) for each in (ours, theirs)]
        size = max(1.0, float(values[1].abs().max()))
        if (largest := float((values[0] - values[1]).abs().max())) > ROWS * size:
            found["rows"] = f"values differ by {largest:.2g}"
    if ours.tokens != theirs.tokens:
        found["tokens"] = f"{ours.tokens} instead of {theirs.tokens}"
    return found


def test_what_the_published_code_computed(answering: Answering) -> None:
    """A difference by choice is declared in `differences.json`, and has to be there."""
    path = HERE / answering.name / "differences.json"
    declared: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
    found = {
        name: differences
        for name, theirs in RECORDS[answering.name].items()
        if (differences := find_differences(answering.record(CASES[name]), theirs))
    }
    undeclared = {
        name: {field: text for field, text in differences.items() if field not in declared.get(name, {})}
        for name, differences in found.items()
    }
    assert not any(undeclared.values()), json.dumps(undeclared, indent=1)
    gone = {name: [field for field in fields if field not in found.get(name, {})] for name, fields in declared.items()}
    assert not any(gone.values()), f"declared as different, and equal: {gone}"
