"""Tokenizers of the tiny checkpoints: bytes, and special tokens.

The files are read by every release of Transformers and tokenizers that the published code needs.

    python tests/golden/byte_tokenizer.py FOLDER '<|im_end|>' '<image>' --first '<unk>' '<s>' '</s>'
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def list_bytes() -> list[str]:
    """Return the 256 symbols with which byte-level BPE writes bytes, in the bytes' order (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def write_tokenizer(
    folder: Path, special: Sequence[str], *, first: Sequence[str] = (), bos_token: str | None = None, **fields: Any
) -> None:
    """Write tokenizer.json and tokenizer_config.json: the tokens `first`, 256 bytes, and `special` tokens behind them.
    bos_token: stands before every text. fields: of tokenizer_config.json."""
    symbols = [*first, *list_bytes(), *special]
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": vocabulary[name], "content": name, **flags} for name in (*first, *special)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    processor: dict[str, Any] | None = None
    if bos_token is not None:
        start, text = {"SpecialToken": {"id": bos_token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        named = {bos_token: {"id": bos_token, "ids": [vocabulary[bos_token]], "tokens": [bos_token]}}
        second = {"Sequence": {"id": "B", "type_id": 1}}
        processor = {"type": "TemplateProcessing", "single": [start, text], "pair": [start, text, second]}
        processor["special_tokens"] = named
        fields = {"bos_token": bos_token, **fields}
    model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []}
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
    }
    content |= {"pre_tokenizer": byte_level, "post_processor": processor, "decoder": byte_level, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False) + "\n")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **fields}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("special", nargs="*", help="special tokens behind the bytes")
    parser.add_argument("--first", nargs="*", default=(), help="special tokens before the bytes")
    parser.add_argument("--bos", help="a token before every text")
    options = parser.parse_args()
    write_tokenizer(options.folder, options.special, first=options.first, bos_token=options.bos)


if __name__ == "__main__":
    main()
