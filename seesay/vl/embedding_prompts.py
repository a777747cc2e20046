"""The prompts of embedders that were trained with one of their own: GME-Qwen2-VL (arXiv 2412.16855) and
Qwen3-VL-Embedding (arXiv 2601.04720). The task is the system's turn, what is embedded is the user's, and the last
hidden state of the prompt, scaled to length 1, is the embedding."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.embedders import find_embedder, read_prompts
from seesay.errors import ErrorCode, RequestError
from seesay.values import GenerationRequest, Message, TextPart
from seesay.vl.chatml import ANSWER, TURNS

_SEARCH = "Retrieve images or text relevant to the user's query."


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingPrompt:
    """How a model's prompt for an embedding is made.

    template: the chat template. instruction: the task where a request has none. query_instruction: that of a query
    where a request says only that it is one. ends_sentence: whether a task gets a full stop where it ends in no
    punctuation.
    """

    template: str
    instruction: str
    query_instruction: str
    ends_sentence: bool = False

    def fill(
        self, request: GenerationRequest, instruction: str | None = None, *, is_query: bool = False
    ) -> GenerationRequest:
        """Return the request with this prompt around its conversation or text; one with token ids as it is.
        instruction: the task; by default that of queries or of all others. An empty turn of the assistant at the end,
        which clients of vLLM send to be continued, is what the prompt ends with anyway.

        Raises `RequestError` for `instruction` beside token ids, or beside a turn of the system, which is the task.
        """
        messages = _read_messages(request)
        if not messages:
            return request if instruction is None else _refuse("token ids, which are the whole prompt")
        options = dict(request.template_options)
        if len(messages) > 1 and _is_empty_answer(messages[-1]):
            messages = messages[:-1]
            options.pop("continue_final", None)
        if messages[0].role != "system":
            words = self._word(instruction) or (self.query_instruction if is_query else self.instruction)
            messages = (Message(role="system", parts=(TextPart(text=words),)), *messages)
        elif instruction is not None:
            _refuse("a turn of the system, which is the instruction")
        return replace(request, prompt=messages, chat_template=self.template, template_options=options)

    def _word(self, instruction: str | None) -> str:
        """Return a task as the model was trained to read it."""
        words = (instruction or "").strip() if self.ends_sentence else instruction or ""
        if not words or not self.ends_sentence or unicodedata.category(words[-1]).startswith("P"):
            return words
        return f"{words}."


def _refuse(what: str) -> NoReturn:
    raise RequestError(
        ErrorCode.INVALID_REQUEST, f"instruction cannot be combined with {what}: leave one out", "instruction"
    )


def _read_messages(request: GenerationRequest) -> tuple[Message, ...]:
    """Return the conversation of a request, a turn of the user for a text; nothing for token ids."""
    if isinstance(request.prompt, str):
        return (Message(role="user", parts=(TextPart(text=request.prompt),)),)
    return tuple(each for each in request.prompt if isinstance(each, Message))


def _is_empty_answer(message: Message) -> bool:
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    return message.role == "assistant" and len(texts) == len(message.parts) and not any(texts) and not message.extra


_OPEN = "{%- if add_generation_prompt %}%s{%- endif %}"
_GME = EmbeddingPrompt(
    template=TURNS + _OPEN.replace("%s", ANSWER + "<|endoftext|>"),
    instruction="You are a helpful assistant.",
    query_instruction="You are a helpful assistant.",
)
_QWEN3_VL = EmbeddingPrompt(
    template=TURNS + _OPEN.replace("%s", ANSWER),
    instruction="Represent the user's input.",
    query_instruction=_SEARCH,
    ends_sentence=True,
)
_PROMPTS: Mapping[str, EmbeddingPrompt] = {"gme": _GME, "qwen3_vl": _QWEN3_VL}


def find_embedding_prompt(checkpoint: Checkpoint) -> EmbeddingPrompt | None:
    """Return how a model's prompts for embeddings are made, with the tasks that its folder names; None for a model that
    has none of its own. Raises `CheckpointError` for a file that cannot be read."""
    kind = find_embedder(checkpoint)
    if kind is None:
        return None
    found, named = _PROMPTS[kind], read_prompts(checkpoint)
    return replace(
        found,
        instruction=named.get("default") or found.instruction,
        query_instruction=named.get("query") or found.query_instruction,
    )
