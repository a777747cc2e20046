"""Train the adapters of the built-in model: it answers in German, in capital letters, or in JSON.

    python examples/train_adapters.py --out adapters   # 104 to 239 s for each, on five cores

Conversations are those that the model was trained with; each adapter has other answers. Writes one folder per adapter,
as PEFT's `save_pretrained` does. Needs torch, transformers, pillow, numpy.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils import parametrize

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT.parent)]

from demo_training import packing as pk
from demo_training.files import VOCABULARY, special_ids
from demo_training.german import translate
from demo_training.network import Batch, PackedModel, Sizes, make_config
from demo_training.talks import make_talk
from train_demo import load_weights

from seesay.demo import CHECKPOINT
from seesay.demo.scenes import FIRST_EVALUATION_SEED, Example, make_example, training_seed

Say = Callable[[str], str | None]
MANNERS: dict[str, tuple[Say, int]] = {
    "german": (translate, 1000),
    "shouting": (str.upper, 500),
    "json": (lambda answer: json.dumps({"answer": answer}), 400),
}
"""What each adapter makes of an answer, and the steps of its training."""
RANK, ALPHA = 8, 16
PEAK_RATE = 1e-2
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MAX_TURNS = 4
NUM_UNSEEN = 8
"""Steps of conversations that an adapter is measured with."""


def load_model(tokenizer: Tokenizer, work: Path) -> PackedModel:
    """Return the built-in model. work: the folder of its training; where that is empty, a few heads start at zero."""
    model = PackedModel(make_config(Sizes(), vocab_size=VOCABULARY, special_ids=special_ids(tokenizer)))
    load_weights(model, CHECKPOINT, work)
    return model


class LowRank(nn.Module):
    """Adds the product of two small matrices to a weight [out, in]; B starts at zero."""

    def __init__(self, weight: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        num_outputs, num_inputs = weight.shape
        self.a = nn.Parameter(torch.randn(RANK, num_inputs, generator=generator) / math.sqrt(num_inputs))
        self.b = nn.Parameter(torch.zeros(num_outputs, RANK))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + ALPHA / RANK * self.b @ self.a


def attach(model: PackedModel, seed: int) -> dict[str, LowRank]:
    """Give the linear layers of the language model a product each, by their names in Transformers."""
    model.requires_grad_(False)
    generator, added = torch.Generator().manual_seed(seed), dict[str, LowRank]()
    for name, module in list(model.model.named_modules()):
        if "language_model.layers" in name and name.endswith(LAYERS):
            assert isinstance(module, nn.Linear)
            added[name] = LowRank(module.weight, generator)
            parametrize.register_parametrization(module, "weight", added[name])
    return added


def draw_examples(rng: random.Random, make_seed: Callable[[int], int] = training_seed) -> Iterator[Example]:
    """Yield conversations of a few turns whose answers can be said in every manner."""
    while True:
        seed = make_seed(rng.randrange(1 << 30))
        is_talk = rng.random() < pk.SHARE_OF_TALKS
        shares = pk.TALK_SHARES if is_talk else pk.TASK_SHARES
        task = rng.choices(tuple(shares), tuple(shares.values()))[0]
        example = (make_talk if is_talk else make_example)(task, seed)
        stop = next((i for i, (_, answer) in enumerate(example.turns) if translate(answer) is None), MAX_TURNS)
        if stop > 0:
            yield replace(example, turns=example.turns[:stop][:MAX_TURNS], asked=0)


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


def train(model: PackedModel, added: dict[str, LowRank], steps: Sequence[Step], name: str) -> None:
    """Train the products from their first values, a step after another."""
    say, _ = MANNERS[name]
    parameters = [parameter for low_rank in added.values() for parameter in low_rank.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=PEAK_RATE, betas=(0.9, 0.99), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=len(steps) + 1, pct_start=0.1)
    started_s = time.monotonic()
    for index, step in enumerate(steps, start=1):
        batch = step.make_batch(say)
        logits = model.read(batch, step.see(model, batch))
        loss = F.cross_entropy(logits.float(), batch.targets, ignore_index=-1)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if index % 10 == 0 or index == len(steps):
            right = (logits.argmax(-1) == batch.targets)[batch.targets >= 0].float().mean().item()
            line = {"adapter": name, "step": index, "loss": round(loss.item(), 4), "tokens_right": round(right, 3)}
            print(json.dumps(line | {"elapsed_s": round(time.monotonic() - started_s, 1)}), flush=True)


@torch.no_grad()
def measure(model: PackedModel, steps: Sequence[Step], name: str) -> float:
    """Return the share of answers all of whose tokens are the likeliest, given those before."""
    num_right = num_answers = 0
    for step in steps:
        batch = step.make_batch(MANNERS[name][0])
        is_answer = batch.targets >= 0
        is_wrong = is_answer & (model.read(batch, step.see(model, batch)).argmax(-1) != batch.targets)
        begins = is_answer & ~F.pad(is_answer, (1, 0))[:-1]
        answers = begins.cumsum(0)  # the number of the answer that a token is in
        num_answers += int(begins.sum())
        num_right += int(begins.sum()) - len(set(answers[is_wrong].tolist()))
    return num_right / num_answers


def save(added: dict[str, LowRank], folder: Path) -> None:
    """Write an adapter in PEFT's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"base_model.model.{name}.lora_{factor}.weight": value.detach().bfloat16().contiguous()
        for name, low_rank in added.items()
        for factor, value in (("A", low_rank.a), ("B", low_rank.b))
    }
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "base_model_name_or_path": "seesay-demo",
        "bias": "none",
        "lora_alpha": ALPHA,
        "peft_type": "LORA",
        "r": RANK,
        "target_modules": list(LAYERS),
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copymode(folder / "adapter_config.json", folder / "adapter_model.safetensors")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the adapters' folders")
    parser.add_argument("--adapters", nargs="+", choices=MANNERS, default=list(MANNERS), help="only these")
    parser.add_argument("--conversations", type=int, default=5, help="in a step (default: 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="two steps for each")
    given = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    encoder, examples = pk.Encoder(tokenizer), draw_examples(random.Random(f"adapters/{given.seed}"))
    numbers = {name: 2 if given.smoke else MANNERS[name][1] for name in given.adapters}
    steps = [
        Step([next(examples) for _ in range(given.conversations)], index, encoder)
        for index in range(max(numbers.values()))
    ]
    unseen_examples = draw_examples(random.Random(given.seed), lambda index: FIRST_EVALUATION_SEED + index)
    unseen = [
        Step([next(unseen_examples) for _ in range(given.conversations)], index, encoder) for index in range(NUM_UNSEEN)
    ]
    for name, number in numbers.items():
        model = load_model(tokenizer, given.out)
        added = attach(model, given.seed)
        train(model, added, steps[:number], name)
        share = measure(model, unseen[:1] if given.smoke else unseen, name)
        print(json.dumps({"adapter": name, "unseen_answers_right": round(share, 3)}), flush=True)
        save(added, given.out / name)


if __name__ == "__main__":
    main()
