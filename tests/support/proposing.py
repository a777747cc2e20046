"""What proposes tokens in tests/support/differential.py: each method as it is, with more that is right in between."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from eagle_heads import make_head
from llm.backbones import VOCAB, names_of
from predicting_layers import add_layer
from safetensors.torch import load_file, save_file

from seesay.checkpoint import Checkpoint
from seesay.engine.core.speculation.draft_model import DraftModel
from seesay.engine.core.speculation.layer_draft import LayerDraft
from seesay.engine.core.speculation.speculation import (
    ModelSpeculation,
    Speculation,
    SpeculationRule,
    TextSpeculation,
    can_propose,
)
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.configs.eagle_config import open_head, read_head_config
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.models.eagle_head import load_head
from seesay.llm.models.predicting_decoder import (
    PredictingDecoder,
    find_layer,
    make_predicting_config,
    make_predicting_names,
)
from seesay.llm.models.state_decoder import StateDecoder
from seesay.llm.running.proposals.chain import ProposalChain
from seesay.llm.running.proposals.kept_states import KeptStates
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.llm.scheduling.sequence import Sequence as TokenSequence

METHODS = ("ngram", "draft", "mtp", "eagle3")
APART = ("qwen3.5", "qwen3-next")
"""Backbones whose predicting layer is stored apart from the others."""
_SIZE = 4
"""Tokens by which `Proposals` knows what follows."""
_MOST_KEPT = 1 << 20


def write_predicting_layer(source: Path, name: str) -> Path:
    """Copy a checkpoint of a backbone, with a layer that predicts further tokens. Returns its folder."""
    return add_layer(source, source.with_name(f"{source.name} predicting"), is_apart=name in APART)


def write_proposer(checkpoint: Path, method: str) -> None:
    """Write beside a checkpoint what proposes for it by `method`, if that is a folder: its copy with other weights that
    often says the same, or a random head."""
    folder = _folder_of(checkpoint, method)
    if folder.exists():
        return
    if method == "draft":
        shutil.copytree(checkpoint, folder)
        generator = torch.Generator().manual_seed(1)
        tensors = load_file(folder / "model.safetensors")
        noise = {name: 0.004 * torch.randn(tensor.shape, generator=generator) for name, tensor in tensors.items()}
        save_file({name: tensor + noise[name] for name, tensor in tensors.items()}, folder / "model.safetensors")
    elif method == "eagle3":
        make_head(folder, checkpoint, rope_scaling=None, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]})


def _folder_of(checkpoint: Path, method: str) -> Path:
    return checkpoint.with_name(f"{checkpoint.name} {method}")


def name_model(checkpoint: Checkpoint) -> Callable[[str], str | None]:
    """Return what names the tensors of a checkpoint but those of a layer behind its last one. Of layers that a pattern
    lists, nothing is behind."""
    name_of = names_of(checkpoint)
    behind = f"layers.{getattr(checkpoint.text_config, 'num_hidden_layers', None)}."
    return lambda name: None if (found := name_of(name)) and found.startswith(behind) else found


class Proposals:
    """A `Speculation` that proposes what `method` does for some sequences, and for others what came behind the same
    tokens in another answer, with mistakes. Nothing rests.

    counts: tokens that `method` proposed, and how many of them the sequences went on with.
    """

    def __init__(self, method: Speculation, most: int) -> None:
        self._method, self._most = method, most
        self._rng = random.Random(most)
        self._live: dict[int, TokenSequence] = {}
        self._known: dict[tuple[int, ...], int] = {}
        self._last: dict[int, tuple[int, ...]] = {}  # of `method`, for the step that comes
        self.counts = [0, 0]

    def learn(self, token_ids: Sequence[int]) -> None:
        """Know what follows in a text."""
        ends = range(_SIZE, len(token_ids))
        self._known.update({tuple(token_ids[end - _SIZE : end]): token_ids[end] for end in ends})

    def begin(self, seq: TokenSequence, *, is_ruled: bool = False) -> None:
        """See `Speculation`."""
        self._method.begin(seq, is_ruled=is_ruled)
        if can_propose(seq.params):
            self._live[seq.seq_id] = seq

    def follow(self, seq_id: int, token_ids: Sequence[int]) -> None:
        """See `Speculation`."""
        self._method.follow(seq_id, token_ids)
        if (seq := self._live.get(seq_id)) is None:
            return
        self.learn(seq.token_ids.tolist()[-len(token_ids) - _SIZE :])
        proposed = self._last.pop(seq_id, ())
        wrong = (i for i, pair in enumerate(zip(proposed, token_ids[:-1], strict=False)) if pair[0] != pair[1])
        self.counts[1] += next(wrong, min(len(proposed), len(token_ids) - 1))

    def drop(self, seq_id: int) -> None:
        """See `Speculation`."""
        self._method.drop(seq_id)
        self._live.pop(seq_id, None)

    def clear(self) -> None:
        """See `Speculation`."""
        self._method.clear()
        self._live.clear()

    def forget(self) -> None:
        """See `Speculation`."""
        self._method.forget()

    def is_wanted(self, num_rows: int) -> bool:
        """See `Speculation`."""
        return bool(self._live) and num_rows > 0 and self._rng.random() < 0.8

    def propose(self, num_rows: int) -> Mapping[int, tuple[int, ...]]:
        """See `Speculation`."""
        own = self._method.propose(num_rows)
        found: dict[int, tuple[int, ...]] = {}
        self._last = {}
        for seq_id, seq in self._live.items():
            if not seq.num_generated or (chance := self._rng.random()) < 0.2:
                continue
            if seq_id in own and chance < 0.7:
                found[seq_id] = self._last[seq_id] = own[seq_id]
                self.counts[0] += len(own[seq_id])
            else:
                found[seq_id] = self._guess(seq.token_ids[-_SIZE:].tolist())
        return found

    def _guess(self, token_ids: list[int]) -> tuple[int, ...]:
        for _ in range(self._rng.randint(1, self._most)):
            guess = self._known.get(tuple(token_ids[-_SIZE:]))
            if guess is None or self._rng.random() < 0.15:
                guess = self._rng.randrange(VOCAB)
            token_ids.append(guess)
        return tuple(token_ids[_SIZE:])


def make_proposals(checkpoint: Checkpoint, method: str, most: int, main: ModelRunner) -> Proposals:
    """Return what proposes up to `most` tokens for rows of `main`, whose cache is not allocated yet, of a checkpoint
    beside which `write_proposer` wrote what that needs."""
    rule = SpeculationRule(most=most, most_tokens=1 << 10, least_saved=0)
    if method == "ngram":
        return Proposals(TextSpeculation(rule, vocab_size=VOCAB), most)
    draft = _make_draft(checkpoint, method, most, main)
    speculation = ModelSpeculation(rule, draft, vocab_size=VOCAB)
    speculation.pause_tokens = 0
    return Proposals(speculation, most)


def _make_draft(checkpoint: Checkpoint, method: str, most: int, main: ModelRunner) -> DraftModel:
    decoder: Any = main.decoder
    session_len = main.limits.session_len
    if method == "draft":
        folder = Checkpoint.load(_folder_of(checkpoint.path, method))
        tied = bool(folder.model_config.tie_word_embeddings)
        config = read_decoder_config(folder.text_config, tied_embeddings=tied, session_len=session_len)
        return DraftModel(_make_runner(_load(ComposedDecoder, folder, config, names_of(folder), decoder), main, 3))
    if method == "eagle3":
        opened = open_head(Checkpoint.load(_folder_of(checkpoint.path, method)))
        head: StateDecoder = load_head(
            opened, read_head_config(opened, decoder.config, session_len=session_len), decoder
        )
        states = KeptStates(_MOST_KEPT, head.join)  # type: ignore[attr-defined]
    else:
        name_of, names = names_of(checkpoint), checkpoint.tensor_names()
        layer = find_layer(names, name_of, decoder.config)
        config = make_predicting_config(decoder.config, layer, names)
        head = _load(PredictingDecoder, checkpoint, config, make_predicting_names(layer, name_of), decoder)
        head.passes_normed = layer.passes_normed  # type: ignore[attr-defined]
        states = KeptStates(_MOST_KEPT)
    head.reserve(64)
    runner = _make_runner(head, main, 5)
    main.kept_states = states
    return LayerDraft(runner, head, states, ProposalChain(runner, head, most=most, most_tokens=128))


def _load(kind: Any, checkpoint: Checkpoint, config: Any, name_of: Any, main: ComposedDecoder) -> Any:
    return kind.load(checkpoint, config, decoder_name=name_of, device=main.device, dtype=main.dtype)


def _make_runner(decoder: Any, main: ModelRunner, num_sequences: int) -> ModelRunner:
    """Return what computes a proposer, with a cache for so many of the longest sequences: others take turns."""
    limits = RunnerLimits(
        max_batch_size=num_sequences + 1,
        max_step_tokens=64,
        session_len=main.limits.session_len,
        block_size=main.limits.block_size,
        max_verified_tokens=128,
    )
    runner = ModelRunner(decoder, limits)
    runner.allocate_cache(num_blocks=num_sequences * limits.max_sequence_blocks, share=1.0)
    return runner
