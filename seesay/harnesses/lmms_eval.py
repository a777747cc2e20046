"""lmms-eval (LMMs-Lab) over a `pipeline`: `python -m lmms_eval eval --model seesay …`. It finds the class by
`seesay.harnesses.describe_to_lmms_eval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.api.registry import register_model

from seesay.errors import ErrorCode, RequestError
from seesay.harnesses.arguments import open_pipeline, read_generation
from seesay.values import AudioSamples

_AT_ONCE = 512
"""Requests whose pictures are in memory together; those of a whole task may not fit."""


@register_model("seesay")
class SeesayLMM(lmms):  # type: ignore[misc, unused-ignore]
    """A model behind a pipeline, asked in messages, with pictures, videos and audio as tasks give them.

    pretrained: as `model_path` of `pipeline`. max_new_tokens: most tokens of an answer, where a task does not say.
    device, options: see `open_pipeline`.
    """

    is_simple = False

    def __init__(
        self,
        pretrained: str = "seesay-demo",
        *,
        max_new_tokens: int = 1024,
        device: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._pipe = open_pipeline(pretrained, device, options)
        self._max_new_tokens = max_new_tokens

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """Answer the conversations of a task. Raises `RequestError` for one that the model cannot answer."""
        results: list[GenerationResult] = []
        for start in range(0, len(requests), _AT_ONCE):
            some = requests[start : start + _AT_ONCE]
            prompts = [self._read_prompt(request) for request in some]
            configs = [read_generation(request.args[2], self._max_new_tokens) for request in some]
            for answer in self._pipe(prompts, gen_config=configs, use_tqdm=True):
                if answer.error is not None:
                    raise answer.error
                counts = TokenCounts(input_tokens=answer.input_token_len, output_tokens=answer.generate_token_len)
                results.append(GenerationResult(text=answer.text, token_counts=counts))
        return results

    def _read_prompt(self, request: Instance) -> list[dict[str, Any]]:
        _, make_messages, _, document, task, split = request.args
        return [_read_message(message) for message in make_messages(self.task_dict[task][split][document])]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Refuse: lmms-eval has no messages for what follows a context."""
        raise NotImplementedError("seesay answers tasks of generate_until; this one compares likelihoods")

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        """Refuse tasks that ask again, of which lmms-eval gives no messages."""
        raise NotImplementedError("seesay answers tasks of generate_until; this one has several rounds")


def _read_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of lmms-eval as one of a pipeline: `url` has media of any form."""
    content = message["content"]
    parts = content if isinstance(content, str) else [_read_part(part) for part in content]
    return {"role": message["role"], "content": parts}


def _read_part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part["type"]
    if kind == "text":
        return {"type": kind, "text": part["text"]}
    if part.get("start_time") is not None or part.get("end_time") is not None:
        raise RequestError(ErrorCode.INVALID_REQUEST, "a part of a video is not supported: cut the file first", kind)
    source = part["url"]
    if kind == "audio" and isinstance(source, Mapping):  # as the datasets library decodes it
        samples = np.asarray(source["array"], dtype=np.float32)
        source = AudioSamples(samples=samples, rate_hz=int(source["sampling_rate"]))
    return {"type": kind, kind: source}
