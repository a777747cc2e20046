"""Messages for people at a command line: what configurations call an option has another name there; a mistyped word has
a nearest known one."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable

# Options whose names on the command line are not those of the configurations.
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
    "request_timeout_s": "request_timeout",
    "drain_timeout_s": "drain_timeout",
}
# A word with an underscore, or any after the name of a configuration.
_OPTION = re.compile(r"\b(?:[A-Z]\w+(?:Config|Limits|Settings)\.([a-z_]+)|([a-z]+(?:_[a-z]+)+))\b")
_ADVICE = re.compile(r",? or raise MediaLimits\.\w+")


def find_options(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the long option of each destination of a parser, without those of its subcommands."""
    found: dict[str, str] = {}
    for action in parser._actions:
        for name in action.option_strings:
            if name.startswith("--"):
                found.setdefault(action.dest, name)
    return found


def adapt(message: str, parser: argparse.ArgumentParser | None) -> str:
    """Return `message` with the options of `parser` in place of what configurations call them, and without advice to
    raise a limit that it has no option for."""
    known = {} if parser is None else find_options(parser)

    def rename(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return known.get(_NAMES.get(name, name), match[0])

    return _ADVICE.sub("", _OPTION.sub(rename, message))


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ': did you mean …?' with the known word that is nearest to `word`; '' when none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f": did you mean {near[0]!r}?" if near else ""
