"""Train the built-in checkpoint: draw scenes, pack their conversations, train, and write a Hugging Face folder.

    python examples/train_demo.py --out seesay/demo/checkpoint --work runs/demo   # 21 minutes on one H200
    python examples/train_demo.py --out /tmp/new --work /tmp/work --start-from seesay/demo/checkpoint --minutes 20
    python examples/train_demo.py --out /tmp/new --work /tmp/work --start-from seesay/demo/checkpoint \
        --seconds 600 --stop-after 300 --score 300    # the first half; a second call with --resume goes on
    python examples/train_demo.py --out /tmp/minute --work /tmp/work --smoke      # a minute model on a CPU

The weights follow from `--seed` up to the rounding of the GPU's own sums. Needs torch, transformers, pillow, numpy.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT.parent)]

from demo_training import packing as pk
from demo_training.feeder import Feeder
from demo_training.files import VOCABULARY, build_tokenizer, special_ids, write_processing_files
from demo_training.network import (
    MINUTE,
    Batch,
    PackedModel,
    Sizes,
    answers_right,
    init_weights,
    make_config,
    tokens_right,
)
from demo_training.optimizer import Average, Optimizer, learning_rate
from demo_training.reference import check_logits
from demo_training.state import STATE, Progress, load_state, read_progress, save_state

from seesay.demo.evaluate import evaluate, transformers_answerer
from seesay.demo.scenes import FIRST_EVALUATION_SEED, SKILLS, TASKS

PATCH_LOSS_SHARE = 0.5
PATCH_LOSS_FLOOR = 0.05
"""Share of the auxiliary loss at the start; it falls to the floor with the learning rate."""
PATCH_HEADS = "patch_heads.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    out: Path
    work: Path
    steps: int
    limit_s: float
    stop_after_s: float
    resume: bool
    num_scored: int
    packs_per_step: int
    reuse: float
    num_workers: int
    seed: int
    first_pack: int
    start_from: Path | None
    peak_rate: float
    validation_packs: int
    report_every_s: float
    export_every_s: float
    compile: bool
    sizes: Sizes


def draw_validation(tokenizer: Tokenizer, num_packs: int, device: torch.device) -> list[Batch]:
    """Batches of one pack each from seeds that training does not draw."""
    encoder = pk.Encoder(tokenizer)
    memory = torch.empty(num_packs, pk.PACK_BYTES, dtype=torch.uint8)
    for index, row in enumerate(memory):
        pk.fill_validation_pack(pk.pack_views(row.numpy()), index, encoder)
    return [Batch(memory[i : i + 1].to(device)) for i in range(num_packs)]


@torch.no_grad()
def measure(model: PackedModel, batches: list[Batch]) -> dict[str, float]:
    """Share of each task's measured questions that greedy decoding answers word for word; of the tasks with long
    answers also the share of tokens that are right after the right ones."""
    answers = tokens = torch.zeros(len(pk.REPORTED_TASKS), 2)
    for batch in batches:
        is_likeliest = model(batch)[2]
        answers = answers + answers_right(batch, is_likeliest, len(pk.REPORTED_TASKS)).cpu()
        tokens = tokens + tokens_right(batch, is_likeliest, len(pk.REPORTED_TASKS)).cpu()
    figures = {}
    for task, (right, asked), (right_tokens, all_tokens) in zip(
        pk.REPORTED_TASKS, answers.tolist(), tokens.tolist(), strict=True
    ):
        figures[task] = round(right / max(1, asked), 4)
        if task.endswith(("page", "find")):
            figures[f"{task}, tokens"] = round(right_tokens / max(1, all_tokens), 4)
    return figures


def export(model: PackedModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the whole checkpoint but its card: bf16 weights under the names of published Qwen2.5-VL checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        _published_name(name): tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(model.config, indent=2) + "\n")
    write_processing_files(folder, tokenizer)


def _published_name(name: str) -> str:
    for inner, published in (("model.visual.", "visual."), ("model.language_model.", "model.")):
        if name.startswith(inner):
            return published + name.removeprefix(inner)
    return name


def _module_name(name: str) -> str:
    if name.startswith("visual."):
        return "model." + name
    return "model.language_" + name if name.startswith("model.") else name


def load_weights(model: PackedModel, folder: Path, work: Path) -> None:
    """Start from an exported checkpoint, and from the auxiliary heads that its training left in `work`.

    Without them the heads start at zero, so that the vision tower feels nothing of them until they know something.
    """
    tensors = load_file(folder / "model.safetensors")
    model.model.load_state_dict({_module_name(name): tensor.float() for name, tensor in tensors.items()})
    for parameter in (*model.patch_heads.parameters(), *model.box_head.parameters()):
        nn.init.zeros_(parameter)
    if (work / PATCH_HEADS).exists():
        _put_heads(model, load_file(work / PATCH_HEADS))


def _take_heads(model: PackedModel) -> dict[str, Tensor]:
    """Return the parameters that only training has, by their names in a file."""
    heads = {**model.patch_heads.state_dict(), **model.box_head.state_dict(prefix="box.")}
    return {name: tensor.cpu().contiguous() for name, tensor in heads.items()}


def _put_heads(model: PackedModel, heads: dict[str, Tensor]) -> None:
    """Give a model the heads of an earlier training, which may be one without that of boxes."""
    box = {name.removeprefix("box."): heads.pop(name) for name in list(heads) if name.startswith("box.")}
    model.patch_heads.load_state_dict(heads)
    if box:
        model.box_head.load_state_dict(box)


def train(options: Options) -> dict[str, float]:
    """Train, write the checkpoint to `options.out`, and return the last validation figures."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.work.mkdir(parents=True, exist_ok=True)
    progress = Progress(next_pack=options.first_pack)
    if options.resume:
        progress = read_progress(options.work)
    tokenizer = build_tokenizer()
    if options.start_from:
        tokenizer = Tokenizer.from_file(str(options.start_from / "tokenizer.json"))
    stream = pk.PackStream(tokenizer.to_str(), num_workers=options.num_workers, first_pack=progress.next_pack)
    if options.start_from and not options.resume:
        print_scores("before", options.start_from, options.num_scored)
    config = make_config(options.sizes, vocab_size=VOCABULARY, special_ids=special_ids(tokenizer))
    model = PackedModel(config)
    init_weights(model, options.seed)
    if options.start_from and not options.resume:
        load_weights(model, options.start_from, options.work)
        check_logits(model, tokenizer)
    model.to(device)
    if device.type == "cuda":
        model.compute_dtype = torch.bfloat16
    validation = draw_validation(tokenizer, options.validation_packs, device)
    feeder = Feeder(stream, packs_per_step=options.packs_per_step, device=device, reuse=options.reuse)
    figures = _Loop(options, model, tokenizer, feeder, validation, progress).run()
    stream.close()
    model.to("cpu")
    model.compute_dtype = torch.float32
    check_logits(model, tokenizer)
    if progress.elapsed_s >= options.limit_s or progress.step >= options.steps:
        print_scores("after", options.out, options.num_scored)
    return figures


def print_scores(when: str, folder: Path, num_scenes: int) -> None:
    """Print the scores of a checkpoint, by task, on `num_scenes` scenes that no training draws. Nothing for none."""
    if num_scenes:
        answer = transformers_answerer(str(folder))
        begin = time.monotonic()
        scores = evaluate(
            answer, num_scenes=num_scenes, seed=FIRST_EVALUATION_SEED, tasks=(*TASKS, *SKILLS), batch_size=150
        )
        print(json.dumps({"scores": when, **scores, "took_s": round(time.monotonic() - begin, 1)}), flush=True)


class _Loop:
    """The steps of a training, from `progress` to the end of its schedule, or to where its process has to stop."""

    def __init__(
        self,
        options: Options,
        model: PackedModel,
        tokenizer: Tokenizer,
        feeder: Feeder,
        validation: list[Batch],
        progress: Progress,
    ) -> None:
        self._options, self._model, self._tokenizer = options, model, tokenizer
        self._feeder, self._validation, self._progress = feeder, validation, progress
        self._optimizer, self._average = Optimizer(model), Average(model)
        if options.resume:
            load_state(options.work, model, self._optimizer, self._average)
        self._compiled = torch.compile(model) if options.compile else model
        self._first_pack = progress.next_pack
        self._begin = self._reported = self._exported = time.monotonic()
        self._reported_step, self._num_starved = progress.step, 0

    def run(self) -> dict[str, float]:
        """Return the last validation figures."""
        progress, options = self._progress, self._options
        elapsed_before_s = progress.elapsed_s
        while True:
            losses = self._step()
            own_s = time.monotonic() - self._begin
            progress.step += 1
            progress.elapsed_s = elapsed_before_s + own_s
            is_done = progress.step >= options.steps or progress.elapsed_s >= options.limit_s
            is_last = is_done or own_s >= options.stop_after_s
            is_due = time.monotonic() - self._reported >= options.report_every_s
            if is_last or is_due or progress.step == 1:
                figures = self._report(losses, is_last=is_last)
            if is_last:
                return figures

    def _step(self) -> dict[str, float | Tensor]:
        options, progress, model = self._options, self._progress, self._model
        done = max(progress.step / options.steps, progress.elapsed_s / options.limit_s)
        rate = learning_rate(progress.step, done) * options.peak_rate
        self._num_starved += self._feeder.is_empty
        memory = self._feeder.take()
        answer_loss, patch_loss, _ = self._compiled(Batch(memory))
        share = max(PATCH_LOSS_FLOOR, PATCH_LOSS_SHARE * (1 - done))
        (answer_loss + share * patch_loss).backward()
        self._feeder.give_back(memory)
        self._optimizer.step(rate, warmup=min(1.0, progress.step / 300))
        model.zero_grad(set_to_none=True)
        self._average.update()
        return {"rate": rate, "answer_loss": answer_loss.detach(), "patch_loss": patch_loss.detach()}

    def _report(self, losses: dict[str, float | Tensor], *, is_last: bool) -> dict[str, float]:
        """Measure the averaged weights, write them now and then, and add a line to the log."""
        progress, now = self._progress, time.monotonic()
        self._average.swap()
        figures = measure(self._model, self._validation)
        is_due = is_last or now - self._exported > self._options.export_every_s
        if is_due:
            export(self._model, self._tokenizer, self._options.out)
            save_file(_take_heads(self._model), self._options.work / PATCH_HEADS)
            self._exported = now
        self._average.swap()
        if is_due:
            progress.next_pack = self._first_pack + self._feeder.num_drawn
            save_state(self._options.work, self._model, self._optimizer, self._average, progress)
        line = {
            "step": progress.step,
            "elapsed_s": round(progress.elapsed_s, 1),
            "steps_per_s": round((progress.step - self._reported_step) / (now - self._reported), 2),
            "starved": self._num_starved,
            "reuse": round(self._feeder.num_shown / max(1, self._feeder.num_drawn), 2),
            **{name: round(float(value), 4) for name, value in losses.items()},
            **figures,
        }
        with (self._options.work / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        self._reported, self._reported_step = time.monotonic(), progress.step
        return figures


def parse_options(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--work", type=Path, required=True, help="folder for the log and what only training needs")
    parser.add_argument("--steps", type=int, default=27000)
    parser.add_argument("--minutes", type=float, default=1e6, help="end the schedule early, after so much wall time")
    parser.add_argument("--seconds", type=float, help="the same in seconds")
    parser.add_argument(
        "--stop-after", type=float, default=1e9, help="end this process after so many seconds of steps, state saved"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the state that a process left in --work")
    parser.add_argument("--score", type=int, default=0, help="scenes per task to be scored on before and after")
    parser.add_argument("--reuse", type=float, default=1.0, help="most times that a pack is shown, on average")
    parser.add_argument("--validation-packs", type=int, default=64, help="packs that watch the training")
    parser.add_argument("--packs-per-step", type=int, default=8, help="packs of about 25 conversations")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="drawing processes")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights")
    parser.add_argument("--first-pack", type=int, default=0, help="where in the endless row of packs to begin")
    parser.add_argument("--start-from", type=Path, help="an exported checkpoint to go on from")
    parser.add_argument("--peak-rate", type=float, default=1.0, help="scales the learning rates")
    parser.add_argument("--smoke", action="store_true", help="a few steps of a minute model")
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args(arguments)
    smoke: bool = given.smoke
    if given.resume and not (given.work / STATE).exists():
        parser.error(f"--resume: there is no {STATE} in {given.work}")
    return Options(
        out=given.out,
        work=given.work,
        steps=min(given.steps, 2) if smoke else given.steps,
        limit_s=given.seconds or 60 * given.minutes,
        stop_after_s=given.stop_after,
        resume=given.resume,
        num_scored=given.score,
        packs_per_step=1 if smoke else given.packs_per_step,
        reuse=given.reuse,
        num_workers=1 if smoke else given.workers,
        seed=given.seed,
        first_pack=given.first_pack,
        start_from=given.start_from,
        peak_rate=given.peak_rate,
        validation_packs=1 if smoke else given.validation_packs,
        report_every_s=40.0,
        export_every_s=55.0,
        compile=not (smoke or given.no_compile),
        sizes=MINUTE if smoke else Sizes(),
    )


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = True
    print(json.dumps(train(parse_options())))
