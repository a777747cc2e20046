"""Cross-encoders: models that read a query and a document in one prompt, and say how well the document answers it.

Qwen3-Reranker (arXiv 2506.05176, section 2) and Qwen3-VL-Reranker answer "yes" or "no": the score is the probability of
"yes" among these two. It is computed of the last hidden state and the rows of the output layer for these tokens.
jina-reranker-m0 has a head of two layers over the state of a token that it was trained with for this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import MediaPart, Message, TextPart
from seesay.vl.chatml import ANSWER, TURNS

Parts = Sequence[TextPart | MediaPart]

LOGIT_SCORE_FILE = "1_LogitScore/config.json"
"""The file of sentence-transformers about a model that answers with one of two tokens."""
_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_BARE_TEMPLATE = (
    "{%- for message in messages %}{%- if message.content is string %}{{ message.content }}{%- else %}"
    "{%- for part in message.content %}{%- if part.type == 'text' %}{{ part.text }}"
    "{%- else %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{%- endif %}{%- endfor %}{%- endif %}{%- endfor %}"
)
_HEAD = ("score.0.weight", "score.0.bias", "score.2.weight", "score.2.bias")
_SCORE_TOKEN = 100
_SCORE_BIAS = 2.65
"""Taken from what jina-reranker-m0's head says, so that 0.5 parts good pairs from others."""
_PIXELS: Mapping[str, int] = {"min_pixels": 56 * 56, "max_pixels": 602_112}


class _Form(NamedTuple):
    """The words of a prompt of one kind of model."""

    instruction: str
    before_query: str
    before_document: str
    ending: str = ""


_FORMS: Mapping[str, _Form] = {
    "qwen3": _Form(
        "Given a web search query, retrieve relevant passages that answer the query",
        "\n<Query>: ",
        "\n<Document>: ",
        "<think>\n\n</think>\n\n",
    ),
    "qwen3_vl": _Form(
        "Given a search query, retrieve relevant candidates that answer the query.", "<Query>:", "\n<Document>:"
    ),
}


class Reranker(Protocol):
    """How a cross-encoder is asked, and how its score is read. template: the chat template of its prompts. ending:
    tokens behind each prompt. takes_instruction: whether a prompt may say what the task is."""

    @property
    def template(self) -> str: ...

    @property
    def ending(self) -> tuple[int, ...]: ...

    @property
    def takes_instruction(self) -> bool: ...

    def make_prompt(self, query: Parts, document: Parts, instruction: str | None = None) -> tuple[Message, ...]:
        """Return the conversation about a pair, for a request with `template` as its chat template."""
        ...

    def score(self, state: npt.ArrayLike) -> float:
        """Return the score of a pair, from 0 to 1, of the last hidden state [hidden] of its prompt."""
        ...


@dataclass(frozen=True, kw_only=True)
class WordReranker:
    """A cross-encoder that answers with one of two words. yes_id, no_id: their tokens."""

    checkpoint: Checkpoint
    form: _Form
    yes_id: int
    no_id: int | None
    ending: tuple[int, ...] = ()
    takes_instruction: bool = True

    @property
    def template(self) -> str:
        return f"{TURNS}{ANSWER}{{{{ {self.form.ending!r} }}}}"

    def make_prompt(self, query: Parts, document: Parts, instruction: str | None = None) -> tuple[Message, ...]:
        task = TextPart(text=f"<Instruct>: {instruction or self.form.instruction}{self.form.before_query}")
        between = TextPart(text=self.form.before_document)
        return (
            Message(role="system", parts=(TextPart(text=_SYSTEM),)),
            Message(role="user", parts=(task, *query, between, *document)),
        )

    def score(self, state: npt.ArrayLike) -> float:
        return _squash(float(np.asarray(state, dtype=np.float64) @ self._direction))

    @cached_property
    def _direction(self) -> npt.NDArray[np.float64]:
        """The row of the output layer for "yes" less that for "no", as the folder has them."""
        yes = self._read_row(self.yes_id)
        return yes if self.no_id is None else yes - self._read_row(self.no_id)

    def _read_row(self, token_id: int) -> npt.NDArray[np.float64]:
        name = _find_output_layer(self.checkpoint)
        return _read(self.checkpoint, name, range(token_id, token_id + 1)).reshape(-1)


@dataclass(frozen=True, kw_only=True)
class HeadReranker:
    """A cross-encoder with two layers that make a score of the last hidden state: jina-reranker-m0."""

    checkpoint: Checkpoint
    template: str = _BARE_TEMPLATE
    ending: tuple[int, ...] = (_SCORE_TOKEN,)
    takes_instruction: bool = False

    def make_prompt(self, query: Parts, document: Parts, instruction: str | None = None) -> tuple[Message, ...]:
        del instruction  # it was trained without
        parts = (TextPart(text="**Document**:\n"), *document, TextPart(text="\n**Query**:\n"), *query)
        return (Message(role="user", parts=tuple(map(_limit_pixels, parts))),)

    def score(self, state: npt.ArrayLike) -> float:
        weight, bias, out_weight, out_bias = self._layers
        inner = np.maximum(weight @ np.asarray(state, dtype=np.float64) + bias, 0)
        return _squash(float(out_weight[0] @ inner + out_bias[0]) - _SCORE_BIAS)

    @cached_property
    def _layers(self) -> list[npt.NDArray[np.float64]]:
        """The weights and biases of the two layers."""
        return [_read(self.checkpoint, name) for name in _HEAD]


def _limit_pixels(part: TextPart | MediaPart) -> TextPart | MediaPart:
    """Return a part; a picture that has no limits of its own with those of the published code."""
    if isinstance(part, TextPart) or part.options.keys() & {"min_pixels", "max_pixels"}:
        return part
    return replace(part, options={**part.options, **_PIXELS})


def _squash(logit: float) -> float:
    return float(1 / (1 + np.exp(-logit)))


def _read(checkpoint: Checkpoint, name: str, rows: range | None = None) -> npt.NDArray[np.float64]:
    """Return a tensor, or rows of it. Raises `CheckpointError` for rows that it does not have."""
    for _, slices in checkpoint.slices([name], "cpu"):
        num_rows, *others = slices.shape
        taken = range(num_rows) if rows is None else rows
        if taken.stop <= num_rows:
            found: npt.NDArray[np.float64] = slices.read((taken, *map(range, others))).double().numpy()
            return found
    raise CheckpointError(
        f"{checkpoint.path}: {name} has no row {0 if rows is None else rows.start}, which a score needs"
    )


def find_reranker(checkpoint: Checkpoint, tokenizer: Tokenizer, name: str) -> Reranker | None:
    """Return how pairs are scored; None for a model that is no cross-encoder. `name`: its path, hub id or name.

    A model is one if it has layers that make a score; if its folder says which tokens it answers with
    (sentence-transformers' `1_LogitScore`, or vLLM's `classifier_from_token` in its configuration); or if it is called
    a reranker. Raises `CheckpointError` for tokens that it does not have.
    """
    if checkpoint.config.get("model_type") == "qwen2_vl" and set(_HEAD) <= set(checkpoint.tensor_names()):
        return HeadReranker(checkpoint=checkpoint)
    form = _FORMS.get(str(checkpoint.config.get("model_type")).removesuffix("_moe"))
    if form is None:
        return None
    saved = checkpoint.read_json(LOGIT_SCORE_FILE)
    if saved is not None:
        yes_id, no_id = _read_ids(checkpoint, saved)
        return WordReranker(checkpoint=checkpoint, form=form, yes_id=yes_id, no_id=no_id)
    words = checkpoint.config.get("classifier_from_token")
    if words is None and not re.search("reranker", name.rstrip("/").rpartition("/")[2], re.IGNORECASE):
        return None
    no_id, yes_id = _find_tokens(checkpoint, tokenizer, words or ["no", "yes"])
    return WordReranker(checkpoint=checkpoint, form=form, yes_id=yes_id, no_id=no_id)


def _read_ids(checkpoint: Checkpoint, saved: Mapping[str, object]) -> tuple[int, int | None]:
    """Return the tokens for "yes" and "no" of a folder of sentence-transformers; it may leave out the second."""
    yes_id, no_id = saved.get("true_token_id"), saved.get("false_token_id")
    for token_id in (yes_id, 0 if no_id is None else no_id):
        if type(token_id) is not int or token_id < 0:
            file = checkpoint.path / LOGIT_SCORE_FILE
            raise CheckpointError(f"{file}: token ids must be integers of at least 0, got {token_id!r:.80}")
    return yes_id, no_id  # type: ignore[return-value]


def _find_tokens(checkpoint: Checkpoint, tokenizer: Tokenizer, words: object) -> list[int]:
    if not isinstance(words, list) or len(words) != 2 or not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{checkpoint.path}: classifier_from_token must be two tokens, got {words!r:.80}")
    found = [tokenizer.encode(word, add_bos=False) for word in words]
    if any(len(ids) != 1 for ids in found):
        raise CheckpointError(f"{checkpoint.path}: {words[0]!r} and {words[1]!r} must be one token each, for scores")
    return [ids[0] for ids in found]


def _find_output_layer(checkpoint: Checkpoint) -> str:
    """Return the name of the output layer's tensor, or of the embeddings where the two are tied."""
    names = checkpoint.tensor_names()
    for ending in ("lm_head.weight", "embed_tokens.weight"):
        for name in sorted(names):
            if name == ending or name.endswith(f".{ending}"):
                return name
        if any(name.startswith("lm_head.") for name in names):
            break
    raise CheckpointError(f"{checkpoint.path}: a score needs an output layer that is not quantized")
