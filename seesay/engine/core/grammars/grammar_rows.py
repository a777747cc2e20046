"""The live requests whose answers follow rules, which are grammars, limits of thoughts, words that must not appear and
n-grams that must not come twice: those that wait for something to be compiled, and the masks of the others. Used by the
engine loop's thread.

A runner knows no rules. Masks are made of the tokens that the host knows, while the forward pass runs, and go to
every runner beside its plan, with the tokens that come next in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from seesay.device.transfers import empty_words
from seesay.engine.core.grammars.draft_masks import make_mask_rows
from seesay.engine.core.grammars.jumps import JumpRule, can_force, can_jump
from seesay.engine.core.grammars.row_matcher import RowMatcher
from seesay.engine.core.live_request import LiveRequest
from seesay.errors import ErrorCode, RequestError
from seesay.grammars.bad_words import BadWordsMatcher
from seesay.grammars.masks import CompiledGrammar, MaskThreads, Overshoots
from seesay.grammars.row_rule import RowRule
from seesay.grammars.thought import ThoughtTracker
from seesay.llm.plans.step_plan import Row, StepPlan, TokenMasks

if TYPE_CHECKING:
    from concurrent.futures import Future

    import torch

    from seesay.config.grammar import Grammar
    from seesay.grammars.bad_words import BadWords, CompiledBadWords
    from seesay.grammars.masks import CompiledGrammars
    from seesay.grammars.matcher import Matcher
    from seesay.llm.scheduling.sequence import Sequence


class GrammarRows:
    """held: requests that wait for their grammar or words, by id. resume(request_id, failure) is called from any thread
    when these are there, or with the reason why they could not be compiled."""

    def __init__(
        self,
        grammars: CompiledGrammars | None,
        *,
        vocab_size: int,
        resume: Callable[[int, BaseException | None], None],
        spell: Callable[[int], bytes] | None = None,
        bad_words: CompiledBadWords | None = None,
        jumps: JumpRule | None = None,
        device: torch.device | None = None,
    ) -> None:
        """`spell`: see `ThoughtTracker`; without it requests have no thoughts. `jumps`: without it each step brings one
        token of a row. `device`: masks go there."""
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._spell = spell
        self._bad_words = bad_words
        self._resume = resume
        self._jumps = jumps
        self._threads = MaskThreads() if device is None else MaskThreads(partial(empty_words, device=device))
        self._rules: dict[int, tuple[RowRule | Matcher | RowMatcher, Sequence]] = {}
        self.held: dict[int, LiveRequest] = {}

    def take(self, request: LiveRequest) -> bool:
        """Make the rule of a request that has one. Returns whether it is there; else the request is held, until its
        grammar and words are compiled. Raises what is wrong with the grammar."""
        sequence = request.sequence
        params = sequence.params
        has_rule = request.grammar is not None or request.thought is not None
        if not has_rule and not params.needs_masks:
            return True
        grammar = None if request.grammar is None else self._find_grammar(request, request.grammar)
        words = None if not params.bad_words else self._find_words(params.bad_words)
        overshoots = self._find_overshoots(request)
        for part in (grammar, words, overshoots):
            if part is not None and not part.done():
                self.held[request.request_id] = request
                part.add_done_callback(lambda done: self._resume(request.request_id, done.exception()))
                return False
        rule = self._make_rule(request, grammar, overshoots) if has_rule else None
        if rule is not None and not (params.has_restrictions or params.bad_token_ids or params.min_new_tokens):
            self._rules[request.request_id] = rule, sequence
        else:
            matcher = RowMatcher(
                rule=rule,
                words=None if words is None else BadWordsMatcher(words.result()),
                params=params,
                has_grammar=grammar is not None,
                prompt_ids=sequence.token_ids[: sequence.num_prompt_tokens],
                vocab_size=self._vocab_size,
            )
            self._rules[request.request_id] = matcher, sequence
        return True

    def _make_rule(
        self, request: LiveRequest, grammar: Future[CompiledGrammar] | None, overshoots: Future[Overshoots] | None
    ) -> RowRule | Matcher:
        """Return the rule of a request's thought and grammar, for which all is compiled."""
        thought = None
        if request.thought is not None:
            assert self._spell is not None, "this engine was made without thoughts"
            thought = ThoughtTracker(request.thought, self._spell)
        if grammar is None:
            return RowRule(thought=thought)
        compiled, params = grammar.result(), request.sequence.params
        tokens, endings = compiled.table.tokens, params.ending_token_ids
        # A stop token that stands in texts ends an answer where it is, as a stop word does.
        endings = tuple(i for i in endings if i in params.eos_token_ids or not _has_text(tokens, i)) or endings
        if thought is None:
            return compiled.make_matcher(endings)
        return RowRule(
            thought=thought,
            make_matcher=partial(compiled.make_matcher, endings),
            ending_token_ids=params.ending_token_ids,
            overshoots=None if overshoots is None else overshoots.result(),
        )

    def _find_grammar(self, request: LiveRequest, program: Grammar) -> Future[CompiledGrammar]:
        if self._grammars is None:
            raise RequestError(ErrorCode.INVALID_REQUEST, "this engine was made without grammars", "response_format")
        params = request.sequence.params
        forces = (
            self._jumps is not None and can_force(params) and set(params.ending_token_ids) <= set(params.eos_token_ids)
        )
        return self._grammars.find(program, owner=request.sequence.owner, forces=forces)

    def _find_overshoots(self, request: LiveRequest) -> Future[Overshoots] | None:
        """Return the tokens that go on behind the thought, where a grammar follows it."""
        if request.thought is None or request.grammar is None or self._grammars is None:
            return None
        return self._grammars.find_overshoots(request.thought.end)

    def _find_words(self, words: tuple[str, ...]) -> Future[BadWords]:
        if self._bad_words is None:
            raise RequestError(ErrorCode.INVALID_REQUEST, "this engine was made without bad_words", "bad_words")
        return self._bad_words.find(words)

    def drop(self, request_id: int) -> None:
        """A request has ended."""
        self._rules.pop(request_id, None)

    def concerns(self, plan: StepPlan) -> bool:
        """Whether a row of a plan may need a mask."""
        return bool(self._rules) and any(map(self._may_forbid, plan.rows))

    def _may_forbid(self, row: Row) -> bool:
        if not row.samples or (own := self._rules.get(row.seq_id)) is None:
            return False
        rule, sequence = own
        first = row.start + row.num_known - sequence.num_prompt_tokens
        if not row.drafts:
            return rule.may_forbid(first)
        return any(rule.may_forbid(first + num_drafts) for num_drafts in range(1 + len(row.drafts)))

    def make_masks(self, plan: StepPlan) -> tuple[TokenMasks | None, Mapping[int, RequestError]]:
        """Return the masks of a plan's rows, and the errors of those that have none. All plans before are committed."""
        masked = [row for row in plan.rows if self._may_forbid(row)]
        if not masked:
            return None, {}
        rows = [made for row in masked for made in make_mask_rows(*self._rules[row.seq_id], row.drafts)]
        seq_ids = [row.seq_id for row in masked for _ in range(1 + len(row.drafts))]
        bits = self._threads.fill(rows, self._vocab_size)
        errors = {seq_id: row.error for seq_id, row in zip(seq_ids, rows, strict=True) if row.error is not None}
        jumps = self._find_jumps(plan, [row for row in masked if row.seq_id not in errors])
        for row in masked:
            if self._rules[row.seq_id][0].is_over:
                del self._rules[row.seq_id]
        restricted = {seq_id for seq_id, row in zip(seq_ids, rows, strict=True) if row.is_masked}
        kept = [index for index, seq_id in enumerate(seq_ids) if seq_id in restricted]
        if not kept:
            return None, errors
        for index in kept:
            if not rows[index].is_masked:
                bits[index] = -1
        masks = TokenMasks(
            seq_ids=tuple(seq_ids[index] for index in kept),
            bits=bits if len(kept) == len(seq_ids) else bits[kept],
            jumps=jumps,
        )
        return masks, errors

    def _find_jumps(self, plan: StepPlan, rows: Iterable[Row]) -> Mapping[int, tuple[int, ...]]:
        """Return the `TokenMasks.jumps` of a plan, of whose rows these have a mask now."""
        if self._jumps is None:
            return {}
        found: dict[int, tuple[int, ...]] = {}
        for row in rows:
            rule, sequence = self._rules[row.seq_id]
            if len(rule.forced) > 1 and not row.drafts and can_jump(sequence.params):
                token_ids = self._jumps.find(row, sequence, rule.forced)
                if token_ids:
                    found[row.seq_id] = token_ids
        return self._jumps.choose(len(plan.rows), found) if found else {}

    def forget(self) -> None:
        """All requests have ended."""
        self._rules.clear()
        self.held.clear()

    def close(self) -> None:
        """Free what the rules and grammars hold."""
        self._rules.clear()
        for compiled in (self._grammars, self._bad_words):
            if compiled is not None:
                compiled.close()


def _has_text(tokens: list[bytes], token_id: int) -> bool:
    """Whether a token stands in texts."""
    return token_id < len(tokens) and tokens[token_id][:1] not in (b"", b"\xff")
