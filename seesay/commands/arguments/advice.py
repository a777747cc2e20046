"""Adapt error messages to the command line: replace field names of configurations by options, and suggest the known
word nearest to a mistyped one."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable

# Field of a configuration → destination of its option, where the names differ.
_NAMES = {
    "block_size": "cache_block_seq_len",
    "chat_template_config": "chat_template",
    "cors_credentials": "allow_credentials",
    "cors_headers": "allow_headers",
    "cors_methods": "allow_methods",
    "cors_origins": "allow_origins",
    "device_type": "device",
    "timeout_s": "media_timeout",
    "max_bytes": "max_media_bytes",
    "max_pixels": "max_media_pixels",
    "max_items": "max_media_items",
    "plugins": "plugin",
    "request_timeout_s": "request_timeout",
    "drain_timeout_s": "drain_timeout",
    "frontend_timeout_s": "frontend_timeout",
    "step_timeout_s": "step_timeout",
    "speculative.method": "speculative_algorithm",
    "speculative.model": "speculative_draft_model",
    "speculative.num_speculative_tokens": "speculative_num_draft_tokens",
}
# A word with an underscore, any word after the name of a configuration class, or the word that the message is about.
_OPTION = re.compile(
    r"\b(?:[A-Z]\w+(?:Config|Limits|Settings)\.([a-z_]+)|(speculative\.[a-z_]+|[a-z]+(?:_[a-z]+)+))\b"
    r"|^([a-z]+)(?= must |=)"
)
_SWITCHED_ON = re.compile(r"(--[\w-]+)=True\b(?: \(\1\))?")
_NEGATION = re.compile("^--(?:no|disable)-")
_ADVICE = re.compile(r",? or raise MediaLimits\.\w+")


def find_options(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Map each destination of a parser to its long option. Subcommands are not included."""
    found: dict[str, str] = {}
    for action in parser._actions:
        for name in action.option_strings:
            if name.startswith("--"):
                found.setdefault(action.dest, name)
    return found


def adapt(message: str, parser: argparse.ArgumentParser | None) -> str:
    """Replace field names of configurations in `message` by the options of `parser`, and a name with True by the option
    alone. Drop the advice to raise a limit for which there is no option."""
    known = {} if parser is None else find_options(parser)

    def rename(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[3]
        return known.get(_NAMES.get(name, name), match[0])

    return _ADVICE.sub("", _SWITCHED_ON.sub(r"\1", _OPTION.sub(rename, message)))


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ': did you mean …?' with the known word nearest to `word`, or '' if none is near: one that is spelled
    alike, or has it as a part. An option that switches off what `word` switches on, or the other way round, is none."""
    words = [name for name in known if not _is_opposite(name, word)]
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.7) or [
        name for name in words if word in name.split("_")
    ]
    return f": did you mean {near[0]!r}?" if near else ""


def _is_opposite(option: str, word: str) -> bool:
    """Return whether one of the two is the other with `--no-` or `--disable-` in front, nearly."""
    stem, other = _NEGATION.sub("--", option), _NEGATION.sub("--", word)
    if (stem == option) == (other == word):
        return False

    def likeness(left: str, right: str) -> float:
        return difflib.SequenceMatcher(None, left, right).ratio()

    return likeness(stem, other) >= likeness(option, word)
