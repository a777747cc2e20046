"""The live requests whose answers follow rules, which are grammars, limits of thoughts, words that must not appear and
n-grams that must not come twice: what has to be compiled for them, and their rules. Used by the engine loop's thread.

A runner knows no rules. Masks are made of the tokens that the host knows (`step_masks.py`), while the forward pass
runs, and go to every runner beside its plan, with the tokens that come next in any case.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from seesay.engine.core.grammars.jumps import JumpRule, can_force
from seesay.engine.core.grammars.row_matcher import RowMatcher
from seesay.engine.core.grammars.step_masks import RuledSequence, Rules, StepMasks
from seesay.engine.core.live_request import LiveRequest
from seesay.errors import ErrorCode, RequestError
from seesay.grammars.bad_words import BadWordsMatcher
from seesay.grammars.masks import CompiledGrammar, Overshoots
from seesay.grammars.row_rule import RowRule
from seesay.grammars.thought import ThoughtTracker

if TYPE_CHECKING:
    from concurrent.futures import Future

    import torch

    from seesay.config.grammar import Grammar
    from seesay.grammars.bad_words import BadWords, CompiledBadWords
    from seesay.grammars.masks import CompiledGrammars
    from seesay.grammars.matcher import Matcher


class GrammarRows:
    """masks: what makes the masks of the requests that have rules."""

    def __init__(
        self,
        grammars: CompiledGrammars | None,
        *,
        vocab_size: int,
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
        self._jumps = jumps
        self._rules: Rules = {}
        self.masks = StepMasks(self._rules, vocab_size=vocab_size, jumps=jumps, device=device)

    def take(self, request: LiveRequest) -> Future[Any] | None:
        """Make the rule of a request that has one, and return None; or return what is still being compiled for it.
        Raises what is wrong with the grammar."""
        sequence = request.sequence
        params = sequence.params
        has_rule = request.grammar is not None or request.thought is not None
        if not has_rule and not params.needs_masks:
            return None
        grammar = None if request.grammar is None else self._find_grammar(request, request.grammar)
        words = None if not params.bad_words else self._find_words(params.bad_words)
        overshoots = self._find_overshoots(request)
        for part in (grammar, words, overshoots):
            if part is not None and not part.done():
                return part
        rule = self._make_rule(request, grammar, overshoots) if has_rule else None
        if rule is not None and not (params.has_restrictions or params.bad_token_ids or params.min_new_tokens):
            self._rules[request.request_id] = RuledSequence(rule, sequence)
        else:
            matcher = RowMatcher(
                rule=rule,
                words=None if words is None else BadWordsMatcher(words.result()),
                params=params,
                has_grammar=grammar is not None,
                prompt_ids=sequence.token_ids[: sequence.num_prompt_tokens],
                vocab_size=self._vocab_size,
            )
            self._rules[request.request_id] = RuledSequence(matcher, sequence)
        return None

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

    def forget(self) -> None:
        """All requests have ended."""
        self._rules.clear()

    def close(self) -> None:
        """Free what the rules and grammars hold."""
        self._rules.clear()
        self.masks.close()
        for compiled in (self._grammars, self._bad_words):
            if compiled is not None:
                compiled.close()


def _has_text(tokens: list[bytes], token_id: int) -> bool:
    """Whether a token stands in texts."""
    return token_id < len(tokens) and tokens[token_id][:1] not in (b"", b"\xff")
