"""From a calibration set to prompts: tokens, positions and the embeddings of media, as the engine makes them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from seesay.config import GenerationConfig, MediaLimits, VisionConfig
from seesay.engine.front.preparer import RequestPreparer
from seesay.engine.front.shared_prompts import SharedPrompts
from seesay.engine.front.text_frontend import TextFrontend
from seesay.errors import ConfigError, ErrorCode, RequestError
from seesay.lite.calibration.batches import Prompt
from seesay.lite.calibration.dataset import CalibrationSet, Conversation
from seesay.lite.progress import Progress
from seesay.templates import choose_template
from seesay.values import GenerationRequest, MediaPart, Message, MultimodalInput

if TYPE_CHECKING:
    from seesay.encoders.encoder import Encoder
    from seesay.engine.opened_model import OpenedModel

logger = logging.getLogger("seesay")

T = TypeVar("T")

_CHARS_PER_TOKEN = 4
_MOST_CHARS_PER_TOKEN = 16
_LEAST_TOKENS = 2


class PromptMaker:
    """Makes prompts for one model. encoder: None for a model without one; conversations with media are then refused."""

    def __init__(
        self, model_path: str | os.PathLike[str], model: OpenedModel, encoder: Encoder | None, *, max_tokens: int
    ) -> None:
        self._model, self._encoder, self._max_tokens = model, encoder, max_tokens
        self._model_path = model_path

    def make(self, calibration: CalibrationSet, num_prompts: int) -> list[Prompt]:
        """Return at most `num_prompts` prompts, spread over the set, texts and conversations in turn. Raises
        `ConfigError` if there are none."""
        texts = self._cut_texts(calibration.texts, num_prompts)
        conversations = self._render(calibration, num_prompts)
        share = num_prompts if not (texts and conversations) else max(num_prompts // 2, 1)
        num_conversations = min(len(conversations), max(share, num_prompts - len(texts)))
        prompts = [*_spread(conversations, num_conversations), *_spread(texts, num_prompts - num_conversations)]
        if not prompts:
            raise ConfigError(
                f"calib_dataset={calibration.name!r} has no prompt of {_LEAST_TOKENS} to {self._max_tokens} tokens "
                "(calib_seqlen)"
            )
        return prompts

    def _cut_texts(self, texts: Sequence[str], num_prompts: int) -> list[Prompt]:
        """Return pieces of `max_tokens` tokens, from equal stretches of all texts; the last may be shorter."""
        text = "\n\n".join(texts)
        num_stretches = min(num_prompts, max(2, len(text) // (_CHARS_PER_TOKEN * self._max_tokens)))  # one is held out
        tokenizer = self._model.tokenizer
        prefix = tokenizer.encode("", add_special_tokens=True)
        found = []
        for i in range(num_stretches):
            start, stop = i * len(text) // num_stretches, (i + 1) * len(text) // num_stretches
            piece = text[start : min(stop, start + _MOST_CHARS_PER_TOKEN * self._max_tokens)]
            ids = [*prefix, *tokenizer.encode(piece)][: self._max_tokens]
            if len(ids) >= _LEAST_TOKENS:
                found.append(Prompt(input=self._without_media(ids)))
        return found

    def _without_media(self, ids: Sequence[int]) -> MultimodalInput:
        token_ids = np.asarray(ids, dtype=np.int64)
        positions, next_position = self._model.family.positions(token_ids, ())
        return MultimodalInput(token_ids=token_ids, positions=positions, next_position=next_position)

    def _render(self, calibration: CalibrationSet, num_prompts: int) -> list[Prompt]:
        takes_media = self._encoder is not None and bool(self._model.family.modalities)
        chosen = _spread(_fitting(calibration, takes_media=takes_media), num_prompts)
        if not chosen:
            return []
        limits = MediaLimits()
        if calibration.folder is not None:
            limits = MediaLimits(allowed_local_media_path=calibration.folder)
        folder = self._model.checkpoint.path
        tokenizer = self._model.tokenizer
        template = choose_template(os.fspath(self._model_path), tokenizer, None, folder=folder)
        preparer = RequestPreparer(
            self._model,
            TextFrontend(tokenizer, template),
            session_len=self._max_tokens,
            max_prefill_token_num=self._max_tokens,
            takes_media=takes_media,
            vision_config=VisionConfig(),
            media_limits=limits,
            is_encoded=lambda _: False,
        )
        try:
            prompts = []
            with Progress("calibration prompts", len(chosen), "conversations") as progress:
                for conversation in chosen:
                    prompts.append(self._try_make(preparer, conversation, calibration))
                    progress.advance()
        finally:
            preparer.close()
        found = [prompt for prompt in prompts if prompt is not None]
        if len(found) < len(prompts):
            logger.warning(
                "calibration: %d of %d conversations have more than %d tokens (calib_seqlen)%s and are left out",
                len(prompts) - len(found), len(prompts), self._max_tokens,
                " or are refused by the chat template" if calibration.fits_any_model else "",
            )  # fmt: skip
        return found

    def _try_make(
        self, preparer: RequestPreparer, conversation: Conversation, calibration: CalibrationSet
    ) -> Prompt | None:
        """Return the prompt of a conversation; None also for one that is wrong, if the set is for any model."""
        try:
            return self._make(preparer, conversation)
        except ConfigError as error:
            if not calibration.fits_any_model:
                raise
            logger.info("%s", error)
            return None

    def _make(self, preparer: RequestPreparer, conversation: Conversation) -> Prompt | None:
        """Return the prompt of a conversation; None if it is too long or too short. Raises `ConfigError` for one that
        is wrong."""
        made = self._prepare(preparer, conversation.messages, conversation.where)
        if made is None or len(made.token_ids) < _LEAST_TOKENS:
            return None
        embeddings: list[torch.Tensor] = []
        if made.items:
            assert self._encoder is not None
            embeddings = [rows.cpu() for rows in self._encoder.encode([item.features for item in made.items])]
        num_context = self._count_context(preparer, conversation, made)
        return Prompt(input=made, embeddings=tuple(embeddings), num_context=num_context)

    def _count_context(self, preparer: RequestPreparer, conversation: Conversation, made: MultimodalInput) -> int:
        """Return how many of a prompt's tokens are before its answer; 0 for one without an answer, or of which the
        template writes something else where the answer is missing."""
        messages = conversation.messages
        if messages[-1].role != "assistant" or len(messages) == 1:
            return 0
        question = self._prepare(preparer, messages[:-1], conversation.where)
        ids = () if question is None else question.token_ids
        return len(ids) if np.array_equal(ids, made.token_ids[: len(ids)]) else 0

    def _prepare(self, preparer: RequestPreparer, messages: tuple[Message, ...], where: str) -> MultimodalInput | None:
        request = GenerationRequest(
            prompt=messages,
            gen_config=GenerationConfig(),
            # What the template puts behind an answer is nothing that a model was trained to say.
            template_options={"continue_final": messages[-1].role == "assistant"},
            wants_answer=False,
        )
        prepared = preparer.prepare({0: request}, lambda _: None, time.perf_counter(), SharedPrompts())[0]
        if isinstance(prepared, RequestError):
            if prepared.code is ErrorCode.CONTEXT_TOO_LONG:
                return None
            raise ConfigError(f"calib_dataset: {where}: {prepared.message}")
        return prepared[0].prompt


def _fitting(calibration: CalibrationSet, *, takes_media: bool) -> Sequence[Conversation]:
    """Return the conversations without those that a model cannot take, if the set is for any model."""
    if takes_media or not calibration.fits_any_model:
        return calibration.conversations
    return [
        conversation
        for conversation in calibration.conversations
        if not any(isinstance(part, MediaPart) for message in conversation.messages for part in message.parts)
    ]


def _spread(values: Sequence[T], count: int) -> list[T]:
    """Return at most `count` of the values, spread evenly."""
    count = min(count, len(values))
    return [values[i * len(values) // count] for i in range(count)]
