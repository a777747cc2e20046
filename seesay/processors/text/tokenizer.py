"""The checkpoint's tokenizer: turns text into ids, and ids into text.

Thread-safe. Independent of chat templates and media.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from seesay.errors import CheckpointError
from seesay.processors.text.long_text import decode_ids, encode_text
from seesay.processors.text.prompt_encoder import PromptEncoder, starts_with
from seesay.processors.text.token_spelling import TokenSpelling
from seesay.processors.text.tokenizer_facts import TokenizerFacts, load_facts, load_hf
from seesay.values import RenderedPrompt

_TEMPLATE_VARIABLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A Hugging Face tokenizer with additional methods for serving.

    hf: the tokenizer object of Transformers, loaded when it is first asked for. Calling this object calls it, and
        attributes that are not defined here are looked up in it (`apply_chat_template`, `padding_side`, …).
    spelling: what tokens stand for in a text.
    digest: 32 bytes over the backend.
    backend: our own copy of its `tokenizers.Tokenizer`. It never changes, so that threads can share it, whatever a user
        does with `hf`.
    """

    def __init__(self, facts: TokenizerFacts, load_hf: Callable[[], Any]) -> None:
        """`facts` are those of the object that `load_hf` returns, which is called when it is first needed."""
        self._load_hf = load_hf
        self._hf: Any = None
        self._hf_lock = threading.Lock()
        self.backend = tokenizers.Tokenizer.from_str(facts.backend)
        self.digest = hashlib.blake2b(facts.backend.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        self.vocab_size: int = self.backend.get_vocab_size(with_added_tokens=True)
        self.bos_token_id = facts.bos_token_id
        self.eos_token_id = facts.eos_token_id
        added = self.backend.get_added_tokens_decoder()
        self.added_tokens: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.special_tokens: tuple[str, ...] = tuple(self.added_tokens[i] for i in sorted(self.special_ids))
        self.special_token_ids: dict[str, int] = {self.added_tokens[i]: i for i in sorted(self.special_ids)}
        self.chat_template = facts.chat_template
        self.named_tokens = dict(facts.named_tokens)
        self.template_variables = {
            name: self.named_tokens[name] for name in _TEMPLATE_VARIABLES if name in self.named_tokens
        }
        self.has_byte_level_decoder = facts.has_byte_level_decoder
        self._prefix_ids = _find_prefix(self.backend)
        self._prompts = PromptEncoder(self.backend, self.added_tokens, self._prefix_ids)
        self.spelling = TokenSpelling(
            self.backend, self.added_tokens, self.special_ids, is_byte_level=self.has_byte_level_decoder
        )

    @classmethod
    def of(cls, hf: object) -> Tokenizer:
        """Return a tokenizer object of Transformers with these methods. Raises `CheckpointError` for one without a fast
        backend."""
        return cls(TokenizerFacts.of(hf), lambda: hf)

    @classmethod
    def wrap(cls, value: object) -> Tokenizer:
        """Return `value`, or wrap a fast tokenizer of Transformers. Raises TypeError for anything else."""
        if isinstance(value, cls):
            return value
        if not getattr(value, "is_fast", False):
            raise TypeError(
                f"tokenizer must be a Tokenizer or a fast tokenizer of Transformers, got {type(value).__name__}"
            )
        return cls.of(value)

    @classmethod
    def load(cls, path: Path, *, trust_remote_code: bool = False) -> Tokenizer:
        """Load the tokenizer of a checkpoint folder (`load_hf` says from which file). Raises `CheckpointError` if there
        is none or it is damaged."""
        try:
            facts = load_facts(path, trust_remote_code=trust_remote_code)
            return cls(facts, partial(load_hf, path, trust_remote_code=trust_remote_code))
        except (KeyboardInterrupt, SystemExit, GeneratorExit, CheckpointError):
            raise
        except BaseException as error:  # readers raise anything; a panic of tokenizers is not an Exception
            hint = "" if trust_remote_code else " (trust_remote_code is off)"
            raise CheckpointError(f"cannot load the tokenizer of {path}{hint}: {error}") from error

    @property
    def hf(self) -> Any:
        """The tokenizer object of Transformers."""
        with self._hf_lock:
            if self._hf is None:
                self._hf = self._load_hf()
            return self._hf

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.hf(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("hf", "_hf", "_hf_lock", "_load_hf") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.hf, name)

    def token_id(self, token: str) -> int | None:
        """Return the id of the token with exactly this spelling, or None."""
        result: int | None = self.backend.token_to_id(token)
        return result

    def token_text(self, token_id: int) -> str | None:
        """Return the spelling of a token, or None for an id outside the vocabulary."""
        text: str | None = self.backend.id_to_token(int(token_id))
        return text

    def encode(self, text: str, *, add_special_tokens: bool = False, add_bos: bool | None = None) -> list[int]:
        """Return the token ids of `text`. Spellings of special tokens in it become special tokens.

        add_special_tokens: add the special tokens that the tokenizer puts around a raw text. A BOS that the text
        already
            starts with is not repeated.
        add_bos: overrides this for the BOS: False leaves it out, True adds it.
        """
        ids: list[int] = encode_text(self.backend, text, add_special_tokens=add_special_tokens).ids
        prefix = self._prefix_ids
        if add_special_tokens and prefix and (add_bos is False or starts_with(ids[len(prefix) :], prefix)):
            ids = ids[len(prefix) :]
        elif add_bos and not add_special_tokens:
            bos = prefix or ([] if self.bos_token_id is None else [self.bos_token_id])
            ids = ids if starts_with(ids, bos) else [*bos, *ids]
        return ids

    def encode_prompt(
        self, rendered: RenderedPrompt, *, is_apart: bool = False, begins_empty: bool = True
    ) -> tuple[npt.NDArray[np.int64], tuple[tuple[int, int], ...]]:
        """Return ids int64 [T] of a rendered prompt, and the (start, stop) token range of each media marker, as
        `PromptEncoder.encode` does."""
        return self._prompts.encode(rendered, is_apart=is_apart, begins_empty=begins_empty)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of the ids. Ids outside the vocabulary have no text."""
        return decode_ids(self.backend, list(map(int, ids)), skip_special_tokens=skip_special_tokens)


def _find_prefix(backend: tokenizers.Tokenizer) -> list[int]:
    """Return the ids that the tokenizer puts before a raw text."""
    plain, framed = (backend.encode("a", add_special_tokens=add).ids for add in (False, True))
    for start in range(len(framed) - len(plain) + 1):
        if framed[start : start + len(plain)] == plain:
            return list(framed[:start])
    return []
