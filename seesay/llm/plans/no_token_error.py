"""The error of a row whose options forbid every token, in the words of what its request gave."""

from __future__ import annotations

from collections.abc import Sequence

from seesay.errors import ErrorCode, RequestError

_ADVICE = {
    "bad_words": "take out the words that the answer cannot do without",
    "allowed_token_ids": "allow tokens that the answer can go on with",
    "bad_token_ids": "take out tokens that the answer cannot do without",
    "no_repeat_ngram_size": "make no_repeat_ngram_size larger, or 0, which turns it off",
    "min_new_tokens": "lower min_new_tokens",
    "max_thinking_tokens": "raise max_thinking_tokens, for the end of a thought has forbidden tokens",
    "logits_processors": "let the processors leave at least one logit that is not -inf",
    "response_format": "change the grammar",
}


def _name_with_verb(options: Sequence[str]) -> str:
    is_one = len(options) == 1 and not options[0].endswith("s")
    return f"{' and '.join(options)} {'forbids' if is_one else 'forbid'}"


def make_no_token_error(names: Sequence[str], *, num_generated: int) -> RequestError:
    """Return the error of a request whose options `names` leave no token behind `num_generated` ones of its answer."""
    given = [name for name in names if name != "response_format"]
    has_grammar = len(given) < len(names)
    advice = "; or ".join(_ADVICE[name] for name in names)
    if given == ["min_new_tokens"] and has_grammar:
        why = f"the answer that response_format allows ends after {num_generated} tokens, before min_new_tokens"
        advice = "lower min_new_tokens; or let response_format allow a longer answer"
    elif not given:
        why = f"response_format: behind {num_generated} tokens no token is left that goes on as the grammar says"
    else:
        which = "every token that response_format allows" if has_grammar else "every token"
        why = f"{_name_with_verb(given)} {which} behind {num_generated} tokens: no token is left to choose"
    return RequestError(ErrorCode.INVALID_REQUEST, f"{why}: {advice}", (given or list(names))[0])
