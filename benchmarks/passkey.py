"""How well a model finds a number in a long text, by the text's length and the number's depth in it.

    python benchmarks/passkey.py MODEL [--lengths 4096 32768 131072] [--rope-scaling-factor 4] [--compare]

The test of Mohtashami & Jaggi (2023): sentences that say nothing, a pass key of five digits somewhere between them, and
the question for it at the end, all in the model's chat template. A prompt has as many sentences as fit into a length
with the answer. Depth 0 is the beginning of the text, 1 its end. An answer is right if it has the key. Prints a JSON
line per length: `accuracy` by depth over `--trials` keys, and their mean.

What it cannot tell: a model that was not trained to answer (random weights, other questions) is never right,
at any length. For such a model `--compare` is of use: it compares the log-probabilities of the last tokens of the
longest prompt, computed in chunks over the paged cache, with those of Transformers' model in one forward pass, both in
float32 unless --dtype says otherwise. Transformers needs memory for the whole text; its model is loaded when ours is
closed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.request_batch import RequestBatch
from seesay.values import GenerationRequest
from seesay.vl.prompts.conversation_parts import parse_prompts

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
BEFORE = "There is an important number hidden in a lot of irrelevant text. Find it and remember it. "
QUESTION = "What is the pass key? The pass key is"
ANSWER_TOKENS = 24
NUM_COMPARED = 256
"""The last tokens of the prompt whose log-probabilities are compared."""


class Trial(NamedTuple):
    """A prompt, and the key that its answer must have."""

    prompt: str
    key: str


def make_prompt(key: str, num_fillers: int, depth: float) -> str:
    """Return a text of `num_fillers` groups of sentences with the key at `depth`."""
    num_before = round(depth * num_fillers)
    needle = f"The pass key is {key}. Remember it. {key} is the pass key. "
    return f"{BEFORE}{FILLER * num_before}{needle}{FILLER * (num_fillers - num_before)}{QUESTION}"


def count_tokens(engine: AsyncEngine, prompt: str) -> int:
    [request], _ = parse_prompts(prompt)
    if not isinstance(request, GenerationRequest):
        raise request
    return engine.count_tokens(request)


def count_fillers(engine: AsyncEngine, length: int) -> int:
    """Return the most groups of sentences with which a prompt has at most `length` tokens."""
    least = count_tokens(engine, make_prompt("00000", 0, 0.5))
    if least > length:
        raise SystemExit(f"--lengths: {length} is too short: the question alone has {least} tokens")
    per_group = (count_tokens(engine, make_prompt("00000", 8, 0.5)) - least) / 8
    found = int((length - least) / per_group)
    while found and count_tokens(engine, make_prompt("00000", found, 0.5)) > length:
        found -= 1
    return found


def make_trials(num_fillers: int, depths: Sequence[float], num_trials: int, seed: int) -> list[list[Trial]]:
    """Return for each depth prompts with keys of their own."""
    rng = random.Random(seed)
    keys = [[f"{rng.randrange(10000, 100000)}" for _ in range(num_trials)] for _ in depths]
    return [
        [Trial(make_prompt(key, num_fillers, depth), key) for key in own]
        for depth, own in zip(depths, keys, strict=True)
    ]


def score(answers: Sequence[str], trials: Sequence[Trial]) -> float:
    """Return the share of answers that have the key of their trial."""
    return sum(trial.key in answer for answer, trial in zip(answers, trials, strict=True)) / len(trials)


def measure(pipe: Pipeline, length: int, depths: Sequence[float], num_trials: int, seed: int) -> dict[str, Any]:
    """Return the accuracy at a length, prompt and answer together."""
    num_fillers = count_fillers(pipe.engine, length - ANSWER_TOKENS)
    by_depth = make_trials(num_fillers, depths, num_trials, seed)
    config = GenerationConfig(max_new_tokens=ANSWER_TOKENS)
    responses = pipe([trial.prompt for trials in by_depth for trial in trials], gen_config=config)
    for response in responses:
        if response.error is not None:
            raise response.error
    texts = [response.text for response in responses]
    accuracy = {
        str(depth): score(texts[index * num_trials : (index + 1) * num_trials], trials)
        for index, (depth, trials) in enumerate(zip(depths, by_depth, strict=True))
    }
    return {
        "length": length,
        "prompt_tokens": max(response.input_token_len for response in responses),
        "accuracy": accuracy,
        "mean": round(sum(accuracy.values()) / len(accuracy), 4),
        "answer": texts[0],
    }


def find_logprobs(engine: AsyncEngine, token_ids: Sequence[int]) -> np.ndarray:
    """Return the log-probability of each of the last tokens of a text after those before it."""
    config = GenerationConfig(prompt_logprobs=0)
    request = GenerationRequest(prompt=tuple(token_ids), gen_config=config, wants_answer=False)
    with closing(RequestBatch(engine, [request], streams=False).deltas()) as deltas:
        [(_, delta)] = deltas
    if delta.error is not None:
        raise delta.error
    assert delta.prompt_logprobs is not None
    return delta.prompt_logprobs.values[-NUM_COMPARED:, 0].astype(np.float64)


def find_reference(folder: str, config: Any, token_ids: Sequence[int], device: str, dtype: str) -> Any:
    """Return the same, by Transformers' model of this configuration."""
    import torch
    import transformers

    kind = transformers.AutoModelForCausalLM
    if hasattr(config, "vision_config"):
        kind = transformers.AutoModelForImageTextToText
    model = kind.from_pretrained(folder, config=config, dtype=getattr(torch, dtype)).to(device).eval()
    ids = torch.tensor(token_ids, device=device)
    count = min(NUM_COMPARED, len(token_ids) - 1)
    with torch.inference_mode():
        logits = model(input_ids=ids[None], use_cache=False, logits_to_keep=count + 1).logits[0, :-1]
        found = logits.float().log_softmax(-1).gather(-1, ids[-count:, None])[:, 0]
    return found.double().cpu().numpy()


def compare(own: np.ndarray, reference: np.ndarray, num_tokens: int) -> dict[str, Any]:
    """Return how far two rows of log-probabilities are apart, in nats."""
    difference = np.abs(own - reference)
    return {
        "compared_tokens": len(own),
        "at_positions": [num_tokens - len(own), num_tokens - 1],
        "largest_difference": float(difference.max()),
        "mean_difference": float(difference.mean()),
    }


def read_arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", default="seesay-demo")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768, 65536, 131072])
    parser.add_argument("--depths", type=float, nargs="+", default=[0.0, 0.25, 0.5, 0.75, 1.0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default=None, choices=("float16", "bfloat16", "float32"))
    parser.add_argument("--rope-scaling-factor", type=float, default=0.0)
    parser.add_argument("--use-logn-attn", action="store_true")
    parser.add_argument("--hf-overrides", type=json.loads, default={})
    parser.add_argument("--compare", action="store_true")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    arguments = read_arguments(given)
    if arguments.compare and (arguments.rope_scaling_factor or arguments.use_logn_attn):
        raise SystemExit("--compare takes a checkpoint's own scaling, or one of --hf-overrides")
    longest = max(arguments.lengths)
    config = EngineConfig(
        session_len=longest,
        device_type=arguments.device,
        dtype=arguments.dtype or ("float32" if arguments.compare else "auto"),
        rope_scaling_factor=arguments.rope_scaling_factor,
        use_logn_attn=arguments.use_logn_attn,
        hf_overrides=arguments.hf_overrides or None,
    )
    token_ids: list[int] = []
    with pipeline(arguments.model, config) as pipe:
        facts = pipe.engine.core.facts
        for length in arguments.lengths:
            found = measure(pipe, length, arguments.depths, arguments.trials, arguments.seed)
            print(json.dumps({"model": arguments.model, "device": facts.device, **found}), flush=True)
        if arguments.compare:
            unit = pipe.tokenizer.encode(make_prompt("12345", 8, 0.5))
            token_ids = (unit * (longest // len(unit) + 1))[:longest]
            own = find_logprobs(pipe.engine, token_ids)
        checkpoint = pipe.engine.checkpoint
    if token_ids:
        device = facts.device.partition(":")[0]
        reference = find_reference(str(checkpoint.path), checkpoint.hf_config(), token_ids, device, facts.dtype)
        print(json.dumps({"model": arguments.model, "length": longest, **compare(own, reference, longest)}), flush=True)


if __name__ == "__main__":
    main()
