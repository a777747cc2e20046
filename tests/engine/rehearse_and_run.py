"""Compares the kernels of a start with those of steps, for a GPU that is not there:

    python rehearse_and_run.py MODEL_DIR {"option": value} [MODEL_DIR {"option": value} ...]

An engine on the CPU answers requests of many kinds; its plans are then followed on the meta device, after a start was
rehearsed there. Prints a line of JSON per model: "start", how many kernels the start calls; "late", those that only the
steps call, as [name, key] of Triton's cache.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from watched_runner import watched

from seesay import EngineConfig, GenerationConfig, Pipeline
from seesay.checkpoint import resolve_checkpoint
from seesay.engine.core.adapters import AdapterStore
from seesay.engine.core.loading.loading import rehearse
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.opened_model import open_model
from seesay.kernels.absent_gpu import Gpu, absent_gpu
from seesay.llm.models.decoder import Decoder
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.launched_step import LaunchedStep, StepResult
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.values import DecodedMedia, Modality
from seesay.vl.family import Family, Features

HOPPER = Gpu((9, 0), 227 << 10)
SAMPLING: tuple[dict[str, Any], ...] = (
    {},
    {"do_sample": True, "temperature": 2.0, "top_p": 0.95},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "logprobs": 2},
    {"do_sample": True, "temperature": 1.5, "random_seed": 3, "presence_penalty": 0.5, "min_p": 0.01},
    {"logit_bias": {7: 4.0}, "bad_token_ids": [5, 9]},
    {"bad_token_ids": [5, 9]},
    {"min_new_tokens": 3},
)


PICTURES = [[(480, 640)], [(28, 28)], [(100, 300)], [(1024, 1024), (61, 90)], [(1500, 900), (1500, 900)]]
"""Heights and widths of pictures that are encoded at once."""


class Event(NamedTuple):
    """What a runner was told to do, of which step, and with what: a plan, masks, or the tokens that it gave."""

    what: str
    number: int
    given: Any


class RecordedRunner(ModelRunner):
    """A runner that notes in `events` what it is told to do."""

    def __init__(self, decoder: Decoder, limits: RunnerLimits, *, events: list[Event]) -> None:
        super().__init__(decoder, limits)
        self._events = events
        self._numbers: dict[int, int] = {}
        self._kept: list[LaunchedStep] = []  # so that ids stay unique

    def _note(self, what: str, launched: LaunchedStep, given: Any) -> None:
        self._events.append(Event(what, self._numbers[id(launched)], given))

    def apply(self, plan: StepPlan) -> None:
        self._events.append(Event("apply", -1, plan))
        super().apply(plan)

    def launch(self, plan: StepPlan, splices: Any) -> LaunchedStep:
        launched = super().launch(plan, splices)
        self._numbers[id(launched)] = len(self._numbers)
        self._kept.append(launched)
        self._note("launch", launched, plan)
        return launched

    def sample(self, launched: Any, masks: Any = None, processors: Any = None) -> None:
        kept = None if masks is None else replace(masks, bits=masks.bits.copy())  # its memory is used again
        self._note("sample", launched, kept)
        super().sample(launched, masks, processors)

    def collect(self, launched: LaunchedStep) -> StepResult:
        result = super().collect(launched)
        self._note("collect", launched, result.token_ids)
        return result


def ask(folder: str, config: EngineConfig, *, sees: bool, longest: int) -> list[Event]:
    """Ask one, few and many requests at once, of up to `longest` words and of options that mix in all ways. Returns
    what the runner was told to do."""
    rng = np.random.default_rng(0)
    names = [None, *(config.adapters or {})]
    events: list[Event] = []
    with AsyncEngine(
        folder, backend_config=config, core_parts=watched(partial(RecordedRunner, events=events))
    ) as engine:
        pipe = Pipeline.from_engine(engine)
        for count in (1, 1, 2, 3, 4, 5, 8, 13, 16, 27, 40):
            prompts: list[Any] = ["a " * int(rng.integers(1, longest)) for _ in range(count)]
            if sees:
                for index in range(0, count, 3):
                    pixels = rng.integers(0, 255, (int(rng.integers(28, 200)), int(rng.integers(28, 200)), 3))
                    prompts[index] = (prompts[index], Image.fromarray(pixels.astype(np.uint8)))
            kinds = [SAMPLING[i] for i in rng.integers(0, len(SAMPLING) if count > 1 else 2, count)]
            options = [
                GenerationConfig(
                    max_new_tokens=int(rng.integers(kind.get("min_new_tokens", 1), 24)), ignore_eos=True, **kind
                )
                for kind in kinds
            ]
            adapters = [names[i] for i in rng.integers(0, len(names), count)] if count > 1 else None
            for answer in pipe(prompts, gen_config=options, adapter_name=adapters):
                assert answer.finish_reason != "error", answer.text
    return events


def follow(runner: ModelRunner, events: list[Event]) -> None:
    """Do the same with a runner on the meta device."""
    device, hidden = runner.device, runner.decoder.traits.embedding_size
    steps: dict[int, LaunchedStep] = {}
    for what, number, given in events:
        if what == "apply":
            runner.apply(given)
        elif what == "launch":
            items = {item.hash: item for row in given.rows for item in runner.rows[row.seq_id].items}
            embeddings = {
                key: torch.empty(len(item.slots), hidden, dtype=runner.dtype, device=device)
                for key, item in items.items()
            }
            steps[number] = runner.launch(given, runner.find_splices(given, embeddings).splices)
        elif what == "sample":
            runner.sample(steps[number], given)
        else:
            step = steps.pop(number).step
            for row, member in zip(step.rows, step.members, strict=True):
                if row.seq_id in given:
                    member.record(row.start + row.num_tokens, given[row.seq_id])


def make_features(family: Family, size: tuple[int, int]) -> Features:
    frames = np.zeros((1, *size, 3), dtype=np.uint8)
    media = DecodedMedia(modality=Modality.IMAGE, frames=frames, digest=bytes(32))
    return family.preprocess(media, family.measure(media.modality, media.size, {}))


def compare(folder: str, options: dict[str, Any]) -> None:
    path = resolve_checkpoint(folder)
    shared: dict[str, Any] = {"max_batch_size": 32, "session_len": 900, "max_prefill_token_num": 256, **options}
    model = open_model(path, EngineConfig(device_type="cpu", **shared))
    config = EngineConfig(device_type="cpu", engine_process=False, **shared)
    events = ask(folder, config, sees=bool(model.family.modalities), longest=shared["session_len"] // 10)
    with absent_gpu(HOPPER, None) as launches:
        model = open_model(path, EngineConfig(**shared))
        runner, encoder = rehearse(model, EngineConfig(**shared))
        at_start = set(launches.specializations)
        if encoder is not None:
            for sizes in PICTURES:
                encoder.encode([make_features(model.family, size) for size in sizes])
        for adapter in (config.adapters or {}).values():
            assert runner.adapters is not None
            runner.adapters.add(AdapterStore(runner).read(adapter).decoder)
        follow(runner, events)
    late = sorted(launches.specializations - at_start)
    print(json.dumps({"start": len(at_start), "late": late}))


if __name__ == "__main__":
    for name, given in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        compare(name, json.loads(given))
