"""Cuts the beginning of a prompt off. Media are kept or dropped whole."""

from __future__ import annotations

from collections.abc import Sequence

from seesay.errors import ErrorCode, RequestError
from seesay.vl.prompts.prompt import TokenizedPrompt


def cut_front(tokens: TokenizedPrompt, num_media_tokens: Sequence[int], max_tokens: int) -> tuple[TokenizedPrompt, int]:
    """Return the last `max_tokens` tokens of a prompt, and how many of its media were cut off with the others.

    `num_media_tokens` has for each media item the tokens that replace its marker. An item that does not fit whole is
    cut off, so that fewer tokens are left. Raises `RequestError` if nothing is left.
    """
    room, end = max_tokens, len(tokens.token_ids)
    cut = num_dropped = 0
    for index in range(len(tokens.ranges) - 1, -1, -1):
        start, stop = tokens.ranges[index]
        if end - stop > room or num_media_tokens[index] > room - (end - stop):
            cut, num_dropped = max(stop, end - room), index + 1
            break
        room -= end - stop + num_media_tokens[index]
        end = start
    else:
        cut = max(0, end - room)
    if cut == len(tokens.token_ids):
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"truncate_prompt_tokens: the last picture or video of the prompt has {num_media_tokens[-1]} tokens, more "
            f"than the {max_tokens} that are left; media are not cut",
            "truncate_prompt_tokens",
        )
    ranges = tuple((start - cut, stop - cut) for start, stop in tokens.ranges[num_dropped:])
    return TokenizedPrompt(token_ids=tokens.token_ids[cut:], ranges=ranges), num_dropped
