"""Answers the rows of a Ray dataset, pictures included: an engine per actor, and each row once.

Needs the extra `ray`. Ray computes the rows again whose actor or node has died, and writes a block whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from seesay.config import EngineConfig, GenerationConfig
from seesay.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from ray.data import Dataset

    from seesay.offline.pipeline import Pipeline

    Columns: TypeAlias = dict[str, npt.NDArray[np.generic]]

MakePrompt = Callable[[dict[str, Any]], Any]
"""Makes of a row what a pipeline takes: a text, (text, picture, …) or messages."""


class Answering:
    """What an actor does with a batch of rows. Its engine is loaded once."""

    def __init__(self, model_path: str, prompt: MakePrompt, engine: EngineConfig, generation: GenerationConfig) -> None:
        from seesay.offline.pipeline import pipeline

        self._prompt, self._generation = prompt, generation
        self._pipe: Pipeline = pipeline(model_path, engine)

    def __call__(self, batch: Columns) -> Columns:
        """Return the batch with four more columns. A row that cannot be answered has its error as text, and the finish
        reason 'error'."""
        import numpy as np

        count = len(next(iter(batch.values())))
        prompts = [self._prompt({name: column[i] for name, column in batch.items()}) for i in range(count)]
        answers = self._pipe(prompts, gen_config=self._generation)
        return {
            **batch,
            "answer": np.array([one.text for one in answers], dtype=object),
            "finish_reason": np.array([one.finish_reason for one in answers], dtype=object),
            "num_prompt_tokens": np.array([one.input_token_len for one in answers]),
            "num_answer_tokens": np.array([one.generate_token_len for one in answers]),
        }


def answer_rows(
    dataset: Dataset,
    model_path: str = "seesay-demo",
    *,
    prompt: MakePrompt,
    engine_config: EngineConfig | None = None,
    gen_config: GenerationConfig | None = None,
    num_engines: int = 1,
    batch_size: int = 64,
    actor_options: Mapping[str, object] | None = None,
) -> Dataset:
    """Return the dataset with the columns `answer`, `finish_reason`, `num_prompt_tokens` and `num_answer_tokens`.

    Nothing is computed before the dataset is written or read. batch_size: rows that an engine answers at the same time.
    actor_options: Ray's, of each engine's actor; by default a GPU, or a CPU where `device_type` is 'cpu', per rank.

    Raises `ConfigError` for numbers below 1, and `MissingExtraError` without Ray.
    """
    try:
        from ray.data import ActorPoolStrategy
    except ImportError:
        raise MissingExtraError("answering a Ray dataset", package="ray", extra="ray") from None
    for name, value in (("num_engines", num_engines), ("batch_size", batch_size)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value!r}")
    engine = engine_config or EngineConfig()
    resource = "num_cpus" if engine.device_type == "cpu" else "num_gpus"
    options = {resource: engine.num_ranks} if actor_options is None else dict(actor_options)
    return dataset.map_batches(
        Answering,
        fn_constructor_args=(model_path, prompt, engine, gen_config or GenerationConfig()),
        compute=ActorPoolStrategy(size=num_engines),
        batch_size=batch_size,
        **options,
    )
