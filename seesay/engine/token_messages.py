"""The messages between the two halves of the engine: tokens in, tokens out. Plain data and numpy arrays alone, so that
every value here can be serialized.

The frontend makes token requests of prompts and text of tokens; the core (`EngineCore`) computes. All times that end in
`_at_s` are `time.perf_counter()` readings. On Linux that is CLOCK_MONOTONIC, which all processes of a machine share, so
readings of the two halves may be compared when they are different processes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seesay.config.grammar import Grammar
    from seesay.errors import RequestError
    from seesay.llm.plans.sampling_params import SamplingParams
    from seesay.values import FinishReason, MultimodalInput, ThoughtRule
    from seesay.values.prompt_logprobs import PromptLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """A prompt of tokens and embeddings, and how to continue it.

    request_id: unique among the live requests of a core. An item of `prompt` whose `has_arrays` is false is encoded
        only if its embedding is not cached; the core then asks for its features (`CoreListener.on_features_wanted`).
    owner: whose it is; owners take turns. priority: of one owner's waiting requests, those with the lowest are first.
    cache_salt: requests of different salts share no KV block. adapter_id: of the adapter that changes the model for it;
        0 for none.
    is_streamed: whether the client reads the answer while it is generated, so that its tokens should come evenly.
    defers_tokens: whether all tokens may come with the final output, because no client reads them earlier.
    group_id: requests of one group share the KV of the tokens with which they begin; they have the same media, owner
        and salt. It is the id of one of them. keeps_blocks: the KV of this prompt stays, while there is room, for
        requests of the group that come later, until `RequestTaker.end_group`.
    grammar: the program (`seesay.grammars.program`) that the answer follows; it was compiled once, within limits.
    thought: the thought before that, when it is limited or a grammar follows it.
    """

    request_id: int
    prompt: MultimodalInput
    params: SamplingParams
    owner: Hashable = None
    priority: int = 0
    cache_salt: bytes = b""
    adapter_id: int = 0
    is_streamed: bool = False
    defers_tokens: bool = False
    grammar: Grammar | None = None
    group_id: int | None = None
    keeps_blocks: bool = False
    thought: ThoughtRule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReport:
    """The core's report on a request, sent once, when the request ends.

    num_cached_tokens: of the prompt, from the prefix cache. num_drafted, num_accepted: tokens that were proposed and
        computed, and those of them that became tokens of the answer.
    encode_queue_s: the longest that a media item waited for its batch; encode_s: seconds in which items were encoded.
    encoding_at_s, encoded_at_s: when towers began with its items, and had all of them. None: no tower ran.
    computing_at_s: when its first row was launched; first_token_at_s: when its first token was known. None: never.
    encoded_items: indexes of the media items for which a tower ran.
    logits float32 [n, vocab], hidden_states float32 [n, hidden], pooled float32 [hidden], or [n, size] of
        each token: when they were asked for.
    """

    num_cached_tokens: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    encode_queue_s: float = 0.0
    encode_s: float = 0.0
    encoding_at_s: float | None = None
    encoded_at_s: float | None = None
    computing_at_s: float | None = None
    first_token_at_s: float | None = None
    encoded_items: tuple[int, ...] = ()
    logits: npt.NDArray[np.float32] | None = None
    hidden_states: npt.NDArray[np.float32] | None = None
    pooled: npt.NDArray[np.float32] | None = None


@dataclass(slots=True, kw_only=True)  # one for each token: a frozen one takes three times as long to make
class TokenOutput:
    """New tokens of one request, its end, or both; nobody changes it. Every request ends in exactly one output with a
    `finish_reason`.

    token_ids: they include the token that ended the request, which `stop_token_id` then names. logprobs: {token id:
    logprob} for each of them, when asked for. error: set when `finish_reason` is 'error'. failed_item: index of the
    media item that could not be encoded, when the error is about one. report: comes with the final
    output; None there when the core itself is gone. prompt_logprobs: come once, when asked for, with the first tokens.
    """

    request_id: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Mapping[int, float], ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: RequestError | None = None
    failed_item: int | None = None
    report: TokenReport | None = None
    prompt_logprobs: PromptLogprobs | None = None


Features = Mapping[str, Any]
"""A family's preprocessed input of one media item: numbers, strings, tuples of these, and numpy arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreFacts:
    """The facts that a frontend must know of a core, once its model is loaded.

    device, dtype: names, such as 'cuda:0' and 'bfloat16'. session_len: most tokens of a prompt and its answer, which
    the KV cache can hold. takes_media: whether the vision encoder is there. resizes_on_device: whether decoded frames
    are resized by the core's device where the family asks for that (see `Family`).
    """

    device: str
    dtype: str
    session_len: int
    max_batch_size: int
    takes_media: bool
    resizes_on_device: bool
