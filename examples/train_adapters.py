"""Train the adapters of the built-in model: it answers in German, in capital letters, or in JSON.

    python examples/train_adapters.py --out adapters
    python examples/train_adapters.py --out adapters --adapters json

Conversations are about scenes of shapes that the model was trained with; each adapter has other answers. Writes one
folder per adapter, as PEFT's `save_pretrained` does; `examples/measure_adapters.py` asks them. Needs torch,
transformers, pillow, numpy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT.parent)]

from demo_training import packing as pk
from demo_training.files import VOCABULARY, special_ids
from demo_training.german import translate
from demo_training.network import Batch, PackedModel, Sizes, make_config
from train_demo import load_weights

from seesay.demo import CHECKPOINT
from seesay.demo.scenes import FIRST_EVALUATION_SEED, Example, make_example, training_seed

Say = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps whose rate rises to a peak and falls to nothing. is_short: only questions with short answers are asked."""

    steps: int
    peak_rate: float
    is_short: bool


@dataclass(frozen=True, slots=True)
class Manner:
    """What an adapter makes of an answer, None where it cannot, its rank, and how it is trained."""

    say: Say
    rank: int
    stages: tuple[Stage, ...]


MANNERS = {
    "german": Manner(translate, 32, (Stage(300, 5e-3, is_short=False), Stage(700, 3e-3, is_short=True))),
    "shouting": Manner(str.upper, 32, (Stage(300, 5e-3, is_short=False), Stage(1400, 3e-3, is_short=True))),
    "json": Manner(
        lambda answer: json.dumps({"answer": answer}),
        8,
        (Stage(200, 3e-3, is_short=False), Stage(70, 1e-3, is_short=True)),
    ),
}
SCALE = 2
"""What a product is multiplied by: PEFT's alpha / r."""
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
HEAD, TABLE = "lm_head", "embed_tokens"
"""They are adapted, too: without it the model cannot say tokens that it has never said, such as {, which it cannot
tell from others like that."""
TASK_SHARES = {"describe": 25, "count": 25, "attribute": 45, "arithmetic": 5}
SHORT_SHARES = {"count": 30, "attribute": 50, "arithmetic": 20}
SHORT = re.compile(r"There (is|are) .*|Yes\.|No\.|(It|The \w+( shape)?) is (?!on|at|in)(an? )?\w+\.|\d+ \+ \d+ = \d+\.")
"""Short answers: of numbers, colours, shapes, whether something is there, and sums."""
NUM_UNSEEN = 8
"""Steps of conversations that an adapter is measured with."""


def load_model(tokenizer: Tokenizer, work: Path) -> PackedModel:
    """Return the built-in model. work: the folder of its training; where that is empty, a few heads start at zero."""
    model = PackedModel(make_config(Sizes(), vocab_size=VOCABULARY, special_ids=special_ids(tokenizer)))
    load_weights(model, CHECKPOINT, work)
    return model


class LowRank(nn.Module):
    """The factors of a product of low rank, A [rank, in] and B [out, rank]; one of them starts at zero."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(a), nn.Parameter(b)


class AdaptedLinear(LowRank):
    """A linear layer with a product of low rank."""

    def __init__(self, layer: nn.Linear, rank: int, generator: torch.Generator) -> None:
        num_outputs, num_inputs = layer.weight.shape
        a = torch.randn(rank, num_inputs, generator=generator) / math.sqrt(num_inputs)
        super().__init__(a, torch.zeros(num_outputs, rank))
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        added = F.linear(F.linear(x, self.a.to(x.dtype)), (SCALE * self.b).to(x.dtype))
        return F.linear(x, self.weight, self.bias) + added


class AdaptedTable(LowRank):
    """A table of embeddings with a product of low rank: A [rank, tokens], B [width, rank]."""

    def __init__(self, table: nn.Embedding, rank: int, generator: torch.Generator) -> None:
        num_tokens, width = table.weight.shape
        b = torch.randn(width, rank, generator=generator) / (2 * math.sqrt(width))
        super().__init__(torch.zeros(rank, num_tokens), b)
        self.table = table

    @property
    def weight(self) -> Tensor:
        """The table as it is now."""
        return self.table.weight + (SCALE * self.b @ self.a).t().to(self.table.weight.dtype)


def attach(model: PackedModel, rank: int, seed: int) -> dict[str, LowRank]:
    """Give the language model's layers, head and table a product each, by their names in Transformers. The weights
    stay as they are. All is computed in float32: bfloat16 is ten times slower on a processor without it."""
    model.requires_grad_(False)
    generator, added = torch.Generator().manual_seed(seed), dict[str, LowRank]()
    for name, module in list(model.model.named_modules()):
        if ("language_model.layers" in name and name.endswith(LAYERS)) or name == HEAD:
            assert isinstance(module, nn.Linear)
            added[name] = AdaptedLinear(module, rank, generator)
        elif name.endswith(TABLE):
            assert isinstance(module, nn.Embedding)
            added[name] = AdaptedTable(module, rank, generator)
    for name, low_rank in added.items():
        parent, _, own = name.rpartition(".")
        setattr(model.model.get_submodule(parent), own, low_rank)
    return added


def draw_examples(
    rng: random.Random, make_seed: Callable[[int], int] = training_seed, *, is_short: bool = False
) -> Iterator[Example]:
    """Yield conversations about a scene whose answers can be said in every manner."""
    shares = SHORT_SHARES if is_short else TASK_SHARES
    while True:
        task = rng.choices(tuple(shares), tuple(shares.values()))[0]
        example = make_example(task, make_seed(rng.randrange(1 << 30)))
        turns = tuple(
            turn for turn in example.turns if translate(turn[1]) and (not is_short or SHORT.fullmatch(turn[1]))
        )
        if len(turns) >= (3 if is_short and task != "arithmetic" else 1):
            yield replace(example, turns=turns, asked=0)


class Step:
    """The conversations of a step, and what the tower sees in their pictures, which no adapter changes."""

    def __init__(self, examples: Sequence[Example], seed: int, encoder: pk.Encoder) -> None:
        self._examples, self._seed, self._encoder = examples, seed, encoder
        self._embeddings: Tensor | None = None

    def see(self, model: PackedModel, batch: Batch) -> Tensor:
        """Return the embeddings of the pictures, which a batch has in any manner."""
        if self._embeddings is None:
            with torch.no_grad():
                self._embeddings = model.see(batch)
        return self._embeddings

    def make_batch(self, say: Say) -> Batch:
        """Return the conversations with answers in some manner."""
        rng, conversations = random.Random(self._seed), []
        for example in self._examples:
            turns = tuple((question, say(answer) or answer) for question, answer in example.turns)
            conversations.append(self._encoder.encode(replace(example, turns=turns), rng))
        memory = torch.zeros(1, pk.PACK_BYTES, dtype=torch.uint8)
        written = pk.write_pack(pk.pack_views(memory[0].numpy()), ((each, "") for each in conversations))
        assert written == len(conversations), "a step has room for all of its conversations"
        batch = Batch(memory)
        _cut(
            batch,
            sum(len(each.token_ids) for each in conversations),
            sum(each.num_vision_tokens for each in conversations),
        )
        return batch


def _cut(batch: Batch, num_tokens: int, num_vision_tokens: int) -> None:
    """Leave out the padding of a pack."""
    num_patches = num_vision_tokens * pk.MERGE**2
    for name in ("token_ids", "positions", "targets", "vision_rows"):
        setattr(batch, name, getattr(batch, name)[:num_tokens])
    for name in ("patches", "patch_positions"):
        setattr(batch, name, getattr(batch, name)[:num_patches])
    batch.cu_conversations = batch.cu_conversations.clamp(max=num_tokens)
    batch.cu_windows = batch.cu_windows.clamp(max=num_patches)
    batch.cu_frames = batch.cu_frames.clamp(max=num_patches)


def train(model: PackedModel, added: dict[str, LowRank], steps: Iterator[Step], stage: Stage, name: str) -> None:
    """Train the products by a stage, a step after another."""
    parameters = [factor for low_rank in added.values() for factor in (low_rank.a, low_rank.b)]
    optimizer = torch.optim.AdamW(parameters, lr=stage.peak_rate, betas=(0.9, 0.99), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, stage.peak_rate, total_steps=stage.steps + 1, pct_start=min(0.08, 20 / stage.steps)
    )
    started_s = time.monotonic()
    for index in range(1, stage.steps + 1):
        step = next(steps)
        batch = step.make_batch(MANNERS[name].say)
        is_answer = batch.targets >= 0
        logits, targets = model.read(batch, step.see(model, batch))[is_answer].float(), batch.targets[is_answer]
        loss = F.cross_entropy(logits, targets)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if index % 10 == 0 or index == stage.steps:
            right = (logits.argmax(-1) == targets).float().mean().item()
            line = {"adapter": name, "step": index, "loss": round(loss.item(), 4), "tokens_right": round(right, 3)}
            print(json.dumps(line | {"elapsed_s": round(time.monotonic() - started_s, 1)}), flush=True)


@torch.no_grad()
def measure(model: PackedModel, steps: Sequence[Step], name: str) -> float:
    """Return the share of answers all of whose tokens are the likeliest, given those before."""
    num_right = num_answers = 0
    for step in steps:
        batch = step.make_batch(MANNERS[name].say)
        is_answer = batch.targets >= 0
        is_wrong = is_answer & (model.read(batch, step.see(model, batch)).argmax(-1) != batch.targets)
        begins = is_answer & ~F.pad(is_answer, (1, 0))[:-1]
        answers = begins.cumsum(0)  # the number of the answer that a token is in
        num_answers += int(begins.sum())
        num_right += int(begins.sum()) - len(set(answers[is_wrong].tolist()))
    return num_right / num_answers


def save(added: dict[str, LowRank], rank: int, folder: Path) -> None:
    """Write an adapter in PEFT's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, low_rank in added.items():
        form = "lora_embedding_{}" if isinstance(low_rank, AdaptedTable) else "lora_{}.weight"
        for factor, value in (("A", low_rank.a), ("B", low_rank.b)):
            own = f"base_model.model.{name}.{form.format(factor)}"
            tensors[own] = value.detach().bfloat16().contiguous()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "base_model_name_or_path": "seesay-demo",
        "bias": "none",
        "lora_alpha": SCALE * rank,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": [*LAYERS, HEAD, TABLE],
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copymode(folder / "adapter_config.json", folder / "adapter_model.safetensors")


def draw_steps(examples: Iterator[Example], num_conversations: int, encoder: pk.Encoder) -> Iterator[Step]:
    """Yield steps of so many conversations."""
    for index in itertools.count():
        yield Step(list(itertools.islice(examples, num_conversations)), index, encoder)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the adapters' folders")
    parser.add_argument("--adapters", nargs="+", choices=MANNERS, default=list(MANNERS), help="only these")
    parser.add_argument("--conversations", type=int, default=6, help="in a step (default: 6)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="two steps for each stage")
    given = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    encoder = pk.Encoder(tokenizer)
    for name in given.adapters:
        manner = MANNERS[name]
        model = load_model(tokenizer, given.out)
        added = attach(model, manner.rank, given.seed)
        for stage in manner.stages:
            examples = draw_examples(random.Random(f"adapters/{given.seed}/{stage}"), is_short=stage.is_short)
            chosen = replace(stage, steps=2) if given.smoke else stage
            train(model, added, draw_steps(examples, given.conversations, encoder), chosen, name)
        unseen = draw_examples(
            random.Random(given.seed), lambda index: FIRST_EVALUATION_SEED + index, is_short=manner.stages[-1].is_short
        )
        steps = draw_steps(unseen, given.conversations, encoder)
        share = measure(model, list(itertools.islice(steps, 1 if given.smoke else NUM_UNSEEN)), name)
        print(json.dumps({"adapter": name, "unseen_answers_right": round(share, 3)}), flush=True)
        save(added, manner.rank, given.out / name)


if __name__ == "__main__":
    main()
