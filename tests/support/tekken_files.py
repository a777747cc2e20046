"""A small tekken.json, as Mistral publishes them, and the ids that its rule gives: special tokens, then ranks."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""As published, in every version."""
LONGER = ("th", "he", "the", "in", "ing", "ab", "bc", "abc", " t", " the", "--", "é", "不", "不是", "  ", "lle", "ST")
TOKENS = [
    *(bytes([byte]) for byte in range(256)),
    *(token.encode() for token in LONGER),
]
SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
LATER = (*SPECIAL, "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")
NUM_SPECIAL = 30


def make_tekken(version: str = "v3", **changes: Any) -> dict[str, Any]:
    """Return the content of a file, with two tokens more than its vocabulary has. Later versions list special tokens.
    changes: entries in place of its own."""
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate([*TOKENS, b"left", b"out"])
    ]
    listed = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(LATER)]
    config = {
        "pattern": PATTERN, "num_vocab_tokens": len(vocab), "default_vocab_size": NUM_SPECIAL + len(TOKENS),
        "default_num_special_tokens": NUM_SPECIAL, "version": version,
    }  # fmt: skip
    special = {} if version == "v3" else {"special_tokens": listed}
    return {"config": config, "vocab": vocab, **special, **changes}


def write_tekken(folder: Path, version: str = "v3", **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tekken.json").write_text(json.dumps(make_tekken(version, **changes)))
    return folder


def encode_by_rule(text: str) -> list[int]:
    """Join, in each piece of the text, the neighbours whose bytes are the token of the lowest rank."""
    ranks = {token: rank for rank, token in enumerate(TOKENS)}
    ids = []
    for piece in regex.finditer(PATTERN, text):
        data = piece[0].encode()
        parts = [data] if data in ranks else [bytes([byte]) for byte in data]
        while len(parts) > 1:
            found = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
            if min(found) == len(ranks):
                break
            place = found.index(min(found))
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        ids += [NUM_SPECIAL + ranks[part] for part in parts]
    return ids
