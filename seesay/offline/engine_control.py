"""A pipeline's control of its engine, beside asking it: texts, caches, weights, adapters and memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine
    from seesay.processors.text.tokenizer import Tokenizer
    from seesay.templates import ChatTemplate


class EngineControl:
    """The part of `Pipeline` that changes how its engine goes on. Thread-safe."""

    _engine: AsyncEngine

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Another one can be assigned, also a fast tokenizer of Transformers."""
        return self._engine.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer) -> None:
        self._engine.tokenizer = tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        """The chat template. Its attributes can be changed, and another template, or its name, can be assigned."""
        return self._engine.chat_template

    @chat_template.setter
    def chat_template(self, template: ChatTemplate) -> None:
        self._engine.chat_template = template

    def reset_caches(self) -> None:
        """Clear the caches of preprocessed media, embeddings and prefixes. Running requests continue."""
        self._engine.reset_caches()

    @property
    def is_sleeping(self) -> bool:
        """Whether the weights or the KV cache are not on the device, so that no request is answered."""
        return bool(self._engine.status.asleep)

    @property
    def weights_epoch(self) -> int:
        """How often the weights have changed since the model was loaded."""
        return self._engine.status.epoch

    def update_weights(
        self,
        source: str | os.PathLike[str] | Mapping[str, object] | Iterable[tuple[str, object]],
        *,
        partial: bool = False,
        running: Literal["finish", "abort"] = "finish",
    ) -> None:
        """Replace the weights of the decoder and the tower, and forget what was cached with the old ones.

        source: a model folder, or names and tensors (torch or NumPy) as in the checkpoint. Tensors are taken one after
            another; the host keeps a copy of them until all are there.
        partial: the source has only some of the weights; of layers that are computed as one (q, k and v; gate and up;
            weight and bias) all. Without it, it must have all of them.
        running: 'finish' waits for the end of running requests; 'abort' aborts them. New ones wait for the new weights.

        Options of EngineConfig stay as they are: with quantization='fp8', the new weights are quantized, too. Raises
        CheckpointError for a tensor that is unknown, missing, given twice, of another type or shape, or not finite; the
        old weights stay in use.
        """
        self._engine.update_weights(source, partial=partial, running=running)

    def sleep(self, level: int = 1, *, running: Literal["finish", "abort"] = "finish") -> None:
        """Free the memory of the device until `wake_up`. Requests that come meanwhile get an error.

        level: 1 frees the KV cache and moves the weights to host memory; 2 frees both, for weights that are to be
            replaced or are read again from their folder.
        running: 'finish' waits for the end of running requests, 'abort' aborts them.
        """
        self._engine.sleep(level, running=running)

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """End the sleep; with tags ('weights', 'kv_cache') of one part alone, the other one then still sleeps."""
        self._engine.wake_up(tags)

    def load_adapter(self, name: str, source: str | os.PathLike[str]) -> None:
        """Let requests name a LoRA adapter (`adapter_name`), while others are answered.

        source: a folder as PEFT writes it, or a hub id. Slots for adapters are made when the model is loaded
        (EngineConfig.max_adapters). Raises CheckpointError for an adapter that does not fit, RequestError for a name
        that is in use.
        """
        self._engine.load_adapter(name, source)

    def unload_adapter(self, name: str, *, running: Literal["finish", "abort"] = "finish") -> None:
        """Let no request name an adapter any more, wait until those that use it have ended, and free its memory.
        running: 'abort' aborts these requests."""
        self._engine.unload_adapter(name, running=running)
