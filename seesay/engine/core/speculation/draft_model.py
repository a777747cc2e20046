"""A smaller model that proposes how sequences go on. It keeps its own keys and values, computes what it lacks of a
sequence when it is asked, and knows nothing of pictures: what it proposes may be wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.streams import on_stream
from seesay.llm.plans.step_plan import AddedBlocks, BegunSequence, Row, StepPlan

if TYPE_CHECKING:
    from seesay.engine.core.speculation.layer_draft import LayerRounds
    from seesay.llm.plans.sampling_params import SamplingParams
    from seesay.llm.running.launched_step import LaunchedStep, StepResult
    from seesay.llm.running.proposals.kept_states import KeptStates
    from seesay.llm.running.runner import ModelRunner
    from seesay.llm.running.splices import Splices
    from seesay.llm.scheduling.sequence import Sequence


@dataclass(slots=True)
class DraftText:
    """A sequence as a draft model has it, without its first `num_skipped` tokens: its first `num_computed` tokens have
    keys and values, if they still are those of the sequence: `proposed` tokens were computed behind the first
    `num_known`, and the first `num_sure` are those of the sequence. blocks: those it holds."""

    seq: Sequence
    num_skipped: int
    blocks: list[int]
    num_computed: int = 0
    num_known: int = 0
    num_sure: int = 0
    proposed: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens that the sequence has now."""
        return self.seq.num_tokens - self.num_skipped

    @property
    def num_prompt_tokens(self) -> int:
        return self.seq.num_prompt_tokens - self.num_skipped

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        return self.seq.token_ids[self.num_skipped :]

    def learn(self, vocab_size: int) -> tuple[int, tuple[int, ...]]:
        """Know all tokens that the sequence has now. Returns where the new ones begin, and these; media are token 0."""
        start, self.num_known = self.num_known, self.num_tokens
        return start, tuple(_clip(self.token_ids[start:], vocab_size).tolist())

    def settle(self) -> None:
        """Go back to the last token that is one of the sequence."""
        token_ids = self.token_ids[self.num_known :].tolist()
        num_right = 0
        for token_id, proposed in zip(token_ids, self.proposed, strict=False):
            if token_id != proposed:
                break
            num_right += 1
        num_right = max(self.num_known + num_right, self.num_sure)
        self.num_computed = min(self.num_computed, num_right, self.num_tokens - 1)


class DraftModel:
    """Continues sequences by `runner`, whose cache is allocated. Used by the engine loop's thread.

    A sequence that does not fit into the cache takes the blocks of the one that was asked for longest ago. states:
    those of the model that it proposes for, if it needs them. rounds: lets steps of the model propose by themselves.
    num_skipped: tokens at the beginning of each sequence that it does not take.
    """

    states: KeptStates | None = None
    rounds: LayerRounds | None = None
    num_skipped = 0

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._vocab_size = runner.decoder.traits.vocab_size
        self._texts: OrderedDict[int, DraftText] = OrderedDict()
        self._free = list(range(runner.num_blocks))
        self._begun: list[BegunSequence] = []
        self._ended: list[int] = []
        self._added: list[AddedBlocks] = []

    def drop(self, seq_id: int) -> None:
        """Free the blocks of a sequence."""
        text = self._texts.pop(seq_id, None)
        if text is None:
            return
        self._free += text.blocks
        self._added = [added for added in self._added if added.seq_id != seq_id]
        if any(begun.seq_id == seq_id for begun in self._begun):
            self._begun = [begun for begun in self._begun if begun.seq_id != seq_id]
        else:
            self._ended.append(seq_id)

    def propose(self, sequences: Iterable[Sequence], most: int) -> dict[int, tuple[int, ...]]:
        """Return up to `most` tokens for each sequence, by id; none for one of which much is left to compute."""
        texts = self.take_all(sequences, most)
        proposed = self._continue(texts, most)
        for text in texts:
            self._forget_proposed(text, proposed.get(text.seq.seq_id, []))
        return {seq_id: tuple(token_ids) for seq_id, token_ids in proposed.items() if token_ids}

    def take_all(self, sequences: Iterable[Sequence], most: int) -> list[DraftText]:
        """Return those of some sequences for which there are blocks, as the runner has them from now on."""
        taken = [text for seq in sequences if (text := self._take(seq, most)) is not None]
        texts = [text for text in taken if self._texts.get(text.seq.seq_id) is text]  # others may have its blocks now
        self._runner.apply(
            StepPlan(ended_ids=tuple(self._ended), begun=tuple(self._begun), added_blocks=tuple(self._added))
        )
        self._begun, self._ended, self._added = [], [], []
        return texts

    def _continue(self, texts: list[DraftText], most: int) -> dict[int, list[int]]:
        """Compute what is missing of some sequences, and return `most` tokens for those that are complete then, by id.
        Each step is launched before the one before is collected."""
        before = self._catch_up(texts)
        if before is None:
            return {}
        by_id = {text.seq.seq_id: text for text in texts}
        found: dict[int, list[int]] = {row.seq_id: [] for row in before.step.rows if row.samples}
        complete = [by_id[seq_id] for seq_id in found]
        for index in range(most - 1 if complete else 0):
            behind = self._launch(complete, index, before)
            _gather(found, self._runner.collect(before))
            before = behind
        _gather(found, self._runner.collect(before))
        return found

    def _take(self, seq: Sequence, most: int) -> DraftText | None:
        """Return a sequence with blocks for its tokens and `most` more; None where there are not as many."""
        limits = self._runner.limits
        num_tokens = seq.num_tokens - self.num_skipped + most
        need = -(-num_tokens // limits.block_size)
        if num_tokens > limits.session_len or need > self._runner.num_blocks:
            self.drop(seq.seq_id)
            return None
        text = self._texts.get(seq.seq_id)
        if text is None:
            while len(self._texts) >= limits.max_batch_size:
                self.drop(next(iter(self._texts)))
            text = self._texts[seq.seq_id] = DraftText(seq, self.num_skipped, [])
            text.num_known = text.num_tokens
            token_ids = _clip(text.token_ids, self._vocab_size)
            self._begun.append(_begin(text, token_ids, *self._find_positions(seq, text.num_prompt_tokens)))
        else:
            text.settle()
        self._texts.move_to_end(seq.seq_id)
        while len(self._free) < need - len(text.blocks):
            oldest = next(iter(self._texts))
            self.drop(oldest)
            if oldest == seq.seq_id:
                return None
        more = [self._free.pop() for _ in range(need - len(text.blocks))]
        if more:
            text.blocks += more
            self._added.append(AddedBlocks(seq.seq_id, tuple(more)))
        return text

    def _catch_up(self, texts: list[DraftText]) -> LaunchedStep | None:
        """Compute what is missing of some sequences, as much as fits into a step, and choose the next tokens of those
        of which nothing is missing then."""
        room, rows = self._runner.limits.max_step_tokens, []
        for text in texts:
            self._runner.rows[text.seq.seq_id].record(*text.learn(self._vocab_size))
            count = min(room, text.num_tokens - text.num_computed)
            if count > 0:
                stop = text.num_computed + count
                rows.append(Row(text.seq.seq_id, text.num_computed, count, stop == text.num_tokens))
                text.num_computed = stop
                room -= count
        return self._compute(rows, None) if rows else None

    def _compute(self, rows: Sequence_[Row], before: LaunchedStep | None) -> LaunchedStep:
        """Compute rows, whose first tokens `before` has chosen if it is there, and choose the tokens behind them."""
        plan = StepPlan(rows=tuple(rows))
        with torch.inference_mode(), on_stream(self._runner.stream):  # in the order of its steps
            embeddings = self._find_embeddings(plan.rows, before)
        launched = self._runner.launch(plan, embeddings)
        self._runner.sample(launched)
        return launched

    def _find_embeddings(self, rows: Sequence_[Row], before: LaunchedStep | None) -> Mapping[int, Splices]:
        """Return what takes the places of tokens in rows, by sequence id: nothing in a model of its own."""
        del rows, before
        return {}

    def _launch(self, texts: list[DraftText], index: int, before: LaunchedStep | None) -> LaunchedStep:
        """Compute the token of each text that is `index` places behind its known ones, and choose the next one."""
        launched = self._compute([Row(text.seq.seq_id, text.num_known + index, 1, True) for text in texts], before)
        for text in texts:
            text.num_computed = text.num_known + index + 1
        return launched

    def _forget_proposed(self, text: DraftText, proposed: list[int]) -> None:
        """Know the tokens of the sequence alone again."""
        row = self._runner.rows[text.seq.seq_id]
        row.record(text.num_known, ())
        row.counts = None  # of penalties: with refused tokens among them
        self._runner.device_rows.token_places[row.slot] = -1
        text.proposed = tuple(proposed)

    def _find_positions(self, seq: Sequence, num_prompt: int) -> tuple[npt.NDArray[np.int64], int]:
        """Return the rotary positions of the tokens that this model takes of a prompt, and the one after them."""
        del seq
        return np.arange(num_prompt), num_prompt


def _gather(found: dict[int, list[int]], result: StepResult) -> None:
    for seq_id, token_ids in result.token_ids.items():
        found[seq_id] += token_ids


def _begin(
    text: DraftText, token_ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], next_position: int
) -> BegunSequence:
    """Return a sequence as a text without pictures, which is drawn as the sequence itself is."""
    seq = text.seq
    return BegunSequence(
        seq_id=seq.seq_id,
        token_ids=token_ids,
        num_prompt_tokens=text.num_prompt_tokens,
        positions=positions,
        next_position=next_position,
        params=_simplify(seq.params),
        seed=seq.seed,
    )


def _clip(token_ids: npt.NDArray[np.int64], vocab_size: int) -> npt.NDArray[np.int64]:
    """Return tokens without those that a model does not have, such as places of media."""
    return np.where(token_ids < vocab_size, token_ids, 0)


def _simplify(params: SamplingParams) -> SamplingParams:
    """Return options without those that ask for more than tokens, or that others see to."""
    return replace(
        params,
        logits_processors=(),
        bad_words=(),
        allowed_token_ids=(),
        no_repeat_ngram_size=0,
        seed=None,
        logprobs=None,
        prompt_logprobs=None,
        output_logits=None,
        output_last_hidden_state=None,
    )
