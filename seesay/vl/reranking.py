"""Cross-encoders: models that read a query and a document in one prompt, and say how well the document answers it.

Qwen3-Reranker (arXiv 2506.05176, section 2) and Qwen3-VL-Reranker answer "yes" or "no": the score is the probability of
"yes" among these two. It is computed of the last hidden state and the rows of the output layer for these tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import MediaPart, Message, TextPart

Parts = Sequence[TextPart | MediaPart]

LOGIT_SCORE_FILE = "1_LogitScore/config.json"
"""The file of sentence-transformers about a model that answers with one of two tokens."""
_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string %}{{ message.content }}{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'text' %}{{ part.text }}"
    "{%- elif part.type == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- else %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{%- endif %}{%- endfor %}{%- endif %}"
    "{{ '<|im_end|>\n' }}{%- endfor %}{{ '<|im_start|>assistant\n' }}"
)


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


@dataclass(frozen=True, kw_only=True)
class Reranker:
    """How a cross-encoder is asked, and how its score is read. yes_id, no_id: the tokens that it answers with."""

    checkpoint: Checkpoint
    form: _Form
    yes_id: int
    no_id: int | None

    @property
    def template(self) -> str:
        """The chat template of its prompts."""
        return f"{_TEMPLATE}{{{{ {self.form.ending!r} }}}}"

    def make_prompt(self, query: Parts, document: Parts, instruction: str | None = None) -> tuple[Message, ...]:
        """Return the conversation about a pair, for a request with `template` as its chat template."""
        task = TextPart(text=f"<Instruct>: {instruction or self.form.instruction}{self.form.before_query}")
        between = TextPart(text=self.form.before_document)
        return (
            Message(role="system", parts=(TextPart(text=_SYSTEM),)),
            Message(role="user", parts=(task, *query, between, *document)),
        )

    def score(self, state: npt.ArrayLike) -> float:
        """Return the score of a pair, from 0 to 1, of the last hidden state [hidden] of its prompt."""
        logit = float(np.asarray(state, dtype=np.float64) @ self._direction)
        return float(1 / (1 + np.exp(-logit)))

    @cached_property
    def _direction(self) -> npt.NDArray[np.float64]:
        """The row of the output layer for "yes" less that for "no", as the folder has them."""
        yes = self._read_row(self.yes_id)
        return yes if self.no_id is None else yes - self._read_row(self.no_id)

    def _read_row(self, token_id: int) -> npt.NDArray[np.float64]:
        name = _find_output_layer(self.checkpoint)
        for _, slices in self.checkpoint.slices([name], "cpu"):
            num_tokens, size = slices.shape
            if token_id < num_tokens:
                row = slices.read((range(token_id, token_id + 1), range(size)))[0]
                found: npt.NDArray[np.float64] = row.double().numpy()
                return found
        raise CheckpointError(f"{self.checkpoint.path}: {name} has no row {token_id}, which a score needs")


def find_reranker(checkpoint: Checkpoint, tokenizer: Tokenizer, name: str) -> Reranker | None:
    """Return how pairs are scored; None for a model that is no cross-encoder. `name`: its path, hub id or name.

    A model is one if its folder says which tokens it answers with (sentence-transformers' `1_LogitScore`, or vLLM's
    `classifier_from_token` in its configuration), or if it is called a reranker. Raises `CheckpointError` for tokens
    that it does not have.
    """
    form = _FORMS.get(str(checkpoint.config.get("model_type")).removesuffix("_moe"))
    if form is None:
        return None
    saved = checkpoint.read_json(LOGIT_SCORE_FILE)
    if saved is not None:
        yes_id, no_id = _read_ids(checkpoint, saved)
        return Reranker(checkpoint=checkpoint, form=form, yes_id=yes_id, no_id=no_id)
    words = checkpoint.config.get("classifier_from_token")
    if words is None and not re.search("reranker", name.rstrip("/").rpartition("/")[2], re.IGNORECASE):
        return None
    no_id, yes_id = _find_tokens(checkpoint, tokenizer, words or ["no", "yes"])
    return Reranker(checkpoint=checkpoint, form=form, yes_id=yes_id, no_id=no_id)


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
