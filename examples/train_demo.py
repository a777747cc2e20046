"""Train the built-in checkpoint: draw scenes, pack their conversations, train, and write a Hugging Face folder.

    python examples/train_demo.py --out seesay/demo/checkpoint --work runs/demo   # 21 minutes on one H200
    python examples/train_demo.py --out /tmp/new --work /tmp/work --start-from seesay/demo/checkpoint --minutes 20
    python examples/train_demo.py --out /tmp/minute --work /tmp/work --smoke      # a minute model on a CPU

The weights follow from `--seed` up to the rounding of the GPU's own sums. Needs torch, transformers, pillow, numpy.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
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
from demo_training.files import VOCABULARY, build_tokenizer, special_ids, write_processing_files
from demo_training.network import (
    MINUTE,
    Batch,
    PackedModel,
    Sizes,
    answers_right,
    init_weights,
    make_config,
)
from demo_training.optimizer import Average, Optimizer, learning_rate
from demo_training.reference import check_logits

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
    packs_per_step: int
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


class Feeder:
    """Copies packs to the device ahead of the training loop, from pinned memory on a stream of its own."""

    def __init__(self, stream: pk.PackStream, *, packs_per_step: int, device: torch.device) -> None:
        self._stream = stream
        self._packs_per_step = packs_per_step
        self._memory = torch.frombuffer(stream.memory, dtype=torch.uint8).view(-1, pk.PACK_BYTES)
        self._is_cuda = device.type == "cuda"
        if self._is_cuda:
            torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.numel(), 0)  # type: ignore[no-untyped-call]
            self._side_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers: queue.Queue[Tensor] = queue.Queue()
        for _ in range(3):
            self._buffers.put(torch.empty(packs_per_step, pk.PACK_BYTES, dtype=torch.uint8, device=device))
        self._filled: queue.Queue[Tensor | Exception] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                self._fill(self._buffers.get())
        except Exception as error:  # handed to the training loop, which raises it
            self._filled.put(error)

    def _fill(self, buffer: Tensor) -> None:
        slots = [self._stream.wait_next() for _ in range(self._packs_per_step)]
        if self._is_cuda:
            with torch.cuda.stream(self._side_stream):
                for row, slot in zip(buffer, slots, strict=True):
                    row.copy_(self._memory[slot], non_blocking=True)
            self._side_stream.synchronize()
        else:
            buffer.copy_(self._memory[slots])
        for _ in slots:
            self._stream.release()
        self._filled.put(buffer)

    @property
    def is_empty(self) -> bool:
        """Return whether the next `take` has to wait for the drawing workers."""
        return self._filled.empty()

    def take(self) -> Tensor:
        """The next packs, uint8 [K, PACK_BYTES]; give them back once the device has read them."""
        buffer = self._filled.get()
        if isinstance(buffer, Exception):
            raise buffer
        return buffer

    def give_back(self, buffer: Tensor) -> None:
        if self._is_cuda:
            torch.cuda.current_stream().synchronize()
        self._buffers.put(buffer)


def draw_validation(tokenizer: Tokenizer, num_packs: int, device: torch.device) -> list[Batch]:
    """Batches of one pack each from seeds that training does not draw."""
    encoder = pk.Encoder(tokenizer)
    memory = torch.empty(num_packs, pk.PACK_BYTES, dtype=torch.uint8)
    for index, row in enumerate(memory):
        pk.fill_validation_pack(pk.pack_views(row.numpy()), index, encoder)
    return [Batch(memory[i : i + 1].to(device)) for i in range(num_packs)]


@torch.no_grad()
def measure(model: PackedModel, batches: list[Batch]) -> dict[str, float]:
    """Share of each task's measured questions that greedy decoding answers word for word."""
    counts = sum(answers_right(batch, model(batch)[2], len(pk.REPORTED_TASKS)) for batch in batches)
    if not isinstance(counts, Tensor):
        raise ValueError("no batches to measure on")
    shares = (counts[:, 0] / counts[:, 1].clamp(min=1)).tolist()
    return {task: round(share, 4) for task, share in zip(pk.REPORTED_TASKS, shares, strict=True)}


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
    if (work / PATCH_HEADS).exists():
        model.patch_heads.load_state_dict(load_file(work / PATCH_HEADS))
        return
    for parameter in model.patch_heads.parameters():
        nn.init.zeros_(parameter)


def train(options: Options) -> dict[str, float]:
    """Train, write the checkpoint to `options.out`, and return the last validation figures."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.work.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    if options.start_from:
        tokenizer = Tokenizer.from_file(str(options.start_from / "tokenizer.json"))
    stream = pk.PackStream(tokenizer.to_str(), num_workers=options.num_workers, first_pack=options.first_pack)
    config = make_config(options.sizes, vocab_size=VOCABULARY, special_ids=special_ids(tokenizer))
    model = PackedModel(config)
    init_weights(model, options.seed)
    if options.start_from:
        load_weights(model, options.start_from, options.work)
    check_logits(model, tokenizer)
    model.to(device)
    if device.type == "cuda":
        model.compute_dtype = torch.bfloat16
    validation = draw_validation(tokenizer, options.validation_packs, device)
    feeder = Feeder(stream, packs_per_step=options.packs_per_step, device=device)
    figures = _loop(options, model, tokenizer, feeder, validation)
    model.to("cpu")
    model.compute_dtype = torch.float32
    check_logits(model, tokenizer)
    stream.close()
    return figures


def _loop(
    options: Options, model: PackedModel, tokenizer: Tokenizer, feeder: Feeder, validation: list[Batch]
) -> dict[str, float]:
    optimizer, average = Optimizer(model), Average(model)
    compiled = torch.compile(model) if options.compile else model
    log_path = options.work / "log.jsonl"
    begin = reported = exported = time.monotonic()
    starved_steps = reported_step = 0
    figures: dict[str, float] = {}
    for step in range(options.steps):
        done = max(step / options.steps, (time.monotonic() - begin) / options.limit_s)
        rate = learning_rate(step, done) * options.peak_rate
        starved_steps += feeder.is_empty
        memory = feeder.take()
        answer_loss, patch_loss, _ = compiled(Batch(memory))
        share = max(PATCH_LOSS_FLOOR, PATCH_LOSS_SHARE * (1 - done))
        (answer_loss + share * patch_loss).backward()
        feeder.give_back(memory)
        optimizer.step(rate, warmup=min(1.0, step / 300))
        model.zero_grad(set_to_none=True)
        average.update()
        now = time.monotonic()
        is_last = step + 1 == options.steps or now - begin >= options.limit_s
        if not is_last and step > 0 and now - reported < options.report_every_s:
            continue
        average.swap()
        figures = measure(model, validation)
        if is_last or now - exported > options.export_every_s:
            export(model, tokenizer, options.out)
            heads = {name: tensor.cpu().contiguous() for name, tensor in model.patch_heads.state_dict().items()}
            save_file(heads, options.work / PATCH_HEADS)
            exported = now
        if not is_last:
            average.swap()
        line = {
            "step": step + 1,
            "elapsed_s": round(now - begin, 1),
            "steps_per_s": round((step + 1 - reported_step) / (now - reported), 2),
            "starved": starved_steps,
            "rate": round(rate, 4),
            "answer_loss": round(answer_loss.item(), 4),
            "patch_loss": round(patch_loss.item(), 4),
            **figures,
        }
        with log_path.open("a") as log:
            log.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        if is_last:
            break
        reported, reported_step = time.monotonic(), step + 1
    return figures


def parse_options(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--work", type=Path, required=True, help="folder for the log and what only training needs")
    parser.add_argument("--steps", type=int, default=27000)
    parser.add_argument("--minutes", type=float, default=1e6, help="end the schedule early, after so much wall time")
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
    return Options(
        out=given.out,
        work=given.work,
        steps=min(given.steps, 2) if smoke else given.steps,
        limit_s=60 * given.minutes,
        packs_per_step=1 if smoke else given.packs_per_step,
        num_workers=1 if smoke else given.workers,
        seed=given.seed,
        first_pack=given.first_pack,
        start_from=given.start_from,
        peak_rate=given.peak_rate,
        validation_packs=1 if smoke else 64,
        report_every_s=30.0,
        export_every_s=120.0,
        compile=not (smoke or given.no_compile),
        sizes=MINUTE if smoke else Sizes(),
    )


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = True
    print(json.dumps(train(parse_options())))
