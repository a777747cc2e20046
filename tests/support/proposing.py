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
from seesay.engine.core.speculation.layer_draft import LayerDraft, LayerRounds
from seesay.engine.core.speculation.speculation import (
    ModelSpeculation,
    Speculation,
    SpeculationRule,
    TextSpeculation,
    can_propose,
)
from seesay.engine.core.speculation.text_rounds import TextRounds
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
from seesay.llm.plans.step_plan import UNPROPOSED
from seesay.llm.running.proposals.chain import ProposalChain
from seesay.llm.running.proposals.chain_rounds import ChainProposer
from seesay.llm.running.proposals.kept_states import KeptStates
from seesay.llm.running.proposals.ngram_rounds import NgramProposer
from seesay.llm.running.proposals.round_state import VerifiedTokens
from seesay.llm.running.proposals.rounds import Counts, ProposalRounds, RoundProposer
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.llm.running.step_input import StepRows
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


class KnowingProposer:
    """A `RoundProposer` that proposes what another one does, or of the rows for which that proposes anything what came
    behind the same tokens in another answer, with mistakes. CPU only. num_rounds: that it proposed for."""

    def __init__(self, inner: RoundProposer, known: Mapping[tuple[int, ...], int], seed: int) -> None:
        self._inner, self._known, self._rng = inner, known, random.Random(seed)
        self._texts = list[list[int]]()
        self._counts = list[int]()
        self.num_rounds = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin(self, step: StepRows, most: Counts) -> Counts | None:
        """See `RoundProposer`."""
        if (counts := self._inner.begin(step, most)) is not None:
            self._texts, self._counts = [member.token_ids.tolist() for member in step.members], counts.tolist()
        return counts

    def propose(self) -> torch.Tensor:
        """See `RoundProposer`."""
        self.num_rounds += 1
        proposed = self._inner.propose().clone()
        for row, (text, count) in enumerate(zip(self._texts, self._counts, strict=True)):
            if self._rng.random() < 0.8:
                for place, token in enumerate(guess(text, count, self._known, self._rng)):
                    proposed[row, place] = token
        return proposed

    def go_on(self, verified: VerifiedTokens) -> None:
        """See `RoundProposer`."""
        for text, tokens, num_right in zip(
            self._texts, verified.tokens.tolist(), verified.num_right.tolist(), strict=True
        ):
            text += tokens[: num_right + 1]
        self._inner.go_on(verified)


def guess(token_ids: Sequence[int], count: int, known: Mapping[tuple[int, ...], int], rng: random.Random) -> list[int]:
    """Return so many tokens that may come next."""
    text = list(token_ids[-_SIZE:])
    for _ in range(count):
        following = known.get(tuple(text[-_SIZE:]))
        text.append(rng.randrange(VOCAB) if following is None or rng.random() < 0.15 else following)
    return text[-count:] if count else []


class Proposals:
    """A `Speculation` that proposes what `method` does for some sequences, and for others what came behind the same
    tokens in another answer, with mistakes. Nothing rests. A step that proposes by itself, in rounds, has what `method`
    wants alone.

    counts: tokens that `method` proposed, and how many of them the sequences went on with.
    """

    def __init__(self, method: Speculation, most: int) -> None:
        self._method, self._most = method, most
        self._rng = random.Random(most)
        self._live: dict[int, TokenSequence] = {}
        self.known: dict[tuple[int, ...], int] = {}
        self._last: dict[int, tuple[int, ...]] = {}  # of `method`, for the step that comes
        self.counts = [0, 0]

    def learn(self, token_ids: Sequence[int]) -> None:
        """Know what follows in a text."""
        ends = range(_SIZE, len(token_ids))
        self.known.update({tuple(token_ids[end - _SIZE : end]): token_ids[end] for end in ends})

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
        if any(UNPROPOSED in tokens for tokens in own.values()):
            self._last = {}
            return own
        found: dict[int, tuple[int, ...]] = {}
        self._last = {}
        for seq_id, seq in self._live.items():
            if not seq.num_generated or (chance := self._rng.random()) < 0.2:
                continue
            if seq_id in own and chance < 0.7:
                found[seq_id] = self._last[seq_id] = own[seq_id]
                self.counts[0] += len(own[seq_id])
            else:
                most = self._rng.randint(1, self._most)
                found[seq_id] = tuple(guess(seq.token_ids.tolist(), most, self.known, self._rng))
        return found


def make_proposals(checkpoint: Checkpoint, method: str, most: int, main: ModelRunner, *, has_rounds: bool) -> Proposals:
    """Return what proposes up to `most` tokens for rows of `main`, whose cache is not allocated yet, of a checkpoint
    beside which `write_proposer` wrote what that needs. has_rounds: steps may propose by themselves."""
    rule = SpeculationRule(most=most, most_tokens=1 << 10, least_saved=0)
    if method == "ngram":
        text = TextSpeculation(rule, vocab_size=VOCAB)
        proposals = Proposals(text, most)
        if has_rounds:
            proposer = NgramProposer(
                main.device,
                num_texts=8,
                width=main.limits.session_len + 64,
                most=most,
                most_tokens=32,
                vocab_size=VOCAB,
            )
            text._rounds = TextRounds(_add_rounds(main, proposer, proposals), proposer)
        return proposals
    draft = _make_draft(checkpoint, method, most, main)
    speculation = ModelSpeculation(rule, draft, vocab_size=VOCAB)
    speculation.pause_tokens = 0
    proposals = Proposals(speculation, most)
    if has_rounds:
        assert isinstance(draft, LayerDraft)
        chained = ChainProposer(draft._chain)
        draft.rounds = chained.source = LayerRounds(draft, _add_rounds(main, chained, proposals))
    return proposals


def _add_rounds(main: ModelRunner, proposer: RoundProposer, proposals: Proposals) -> ProposalRounds:
    knowing: Any = KnowingProposer(proposer, proposals.known, seed=1)
    main.rounds = ProposalRounds(main, knowing, num_rounds=4, few_rows=2)
    return main.rounds


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
