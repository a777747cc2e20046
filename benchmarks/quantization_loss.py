"""How far quantization moves the first logits, and whether that is the format's doing.

    python benchmarks/quantization_loss.py [--model seesay-demo] [--prompts 8]

Each form is compared with the plain model, and with an *oracle*: Transformers' model in float32, whose weights, or keys
and values, were rounded to the format's numbers and multiplied out. What differs from the oracle is ours; what the
oracle differs from the plain model is the format's. The same is measured of a model of the same sizes with random
weights. Runs on the CPU. Prints a line `RESULT {JSON}` per model, type and form; differences are relative to the size
of the logits, the largest of all prompts.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from h200 import report
from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from seesay import EngineConfig, GenerationConfig, pipeline
from seesay.checkpoint import resolve_checkpoint

Round = Callable[[torch.Tensor], torch.Tensor]
WORDS = (
    "shape",
    "circle",
    "blue",
    "how",
    "many",
    "where",
    "the",
    "picture",
    "red",
    "left",
    "of",
    "is",
    "square",
    "what",
)
FORMS: Mapping[str, Mapping[str, Any]] = {
    "weights-fp8": {"quantization": "fp8"},
    "weights-int8": {"quantization": "int8"},
    "kv-fp8": {"kv_cache_dtype": "fp8"},
    "kv-int8": {"kv_cache_dtype": "int8"},
    "kv-int4": {"kv_cache_dtype": "int4"},
}
"""Options of the engine by form."""


def round_scaled(x: torch.Tensor, largest: float, dtype: torch.dtype) -> torch.Tensor:
    """Return x rounded to numbers of `dtype` of up to `largest`, with a scale for each of its last axis."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / largest
    numbers = (x / scale).clamp(-largest, largest)
    return (numbers.to(dtype).float() if dtype.is_floating_point else numbers.round()) * scale


def round_shifted(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Return x rounded to one of `steps` + 1 numbers, with a scale and a zero point for each of its last axis."""
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / steps).half().float().clamp(min=1e-30)
    zero = (-low / scale).half().float()
    return ((x / scale + zero + 0.5).floor().clamp(0, steps) - zero) * scale


ROUNDED: Mapping[str, Round] = {
    "weights-fp8": lambda x: round_scaled(x, 448.0, torch.float8_e4m3fn),
    "weights-int8": lambda x: round_scaled(x, 127.0, torch.int8),
    "kv-fp8": lambda x: round_scaled(x, 448.0, torch.float8_e4m3fn),
    "kv-int8": lambda x: round_shifted(x, 255),
    "kv-int4": lambda x: round_shifted(x, 15),
}


def compute_oracle(path: Path, form: str | None, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return the float32 logits [vocab] behind each prompt of Transformers' model, rounded as `form` says."""
    name = f"rounded_{form}"

    def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
        keys, values = (ROUNDED[str(form)](part) for part in (key, value))
        return sdpa_attention_forward(module, query, keys, values, *args, **options)

    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()
    decoder = model.get_decoder()
    if form is not None and form.startswith("kv-"):
        ALL_ATTENTION_FUNCTIONS.register(name, attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)
        decoder.config._attn_implementation = name
    elif form is not None:
        for module in decoder.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data = ROUNDED[form](module.weight.data)
    with torch.no_grad():
        return [model(input_ids=torch.tensor(ids)[None], use_cache=False).logits[0, -1] for ids in prompts]


def compute_ours(path: Path, form: str | None, texts: Sequence[str], dtype: str) -> list[torch.Tensor]:
    """Return the logits [vocab] behind each text in seesay."""
    options: dict[str, Any] = {"dtype": dtype, **({} if form is None else FORMS[form])}
    config = EngineConfig(device_type="cpu", **options)
    wanted = GenerationConfig(max_new_tokens=1, output_logits="generation", do_sample=False)
    with pipeline(str(path), backend_config=config) as pipe:
        answers = pipe(list(texts), gen_config=wanted, do_preprocess=False)
    assert all(answer.error is None and answer.logits is not None for answer in answers)
    return [answer.logits[0].float() for answer in answers]


def differ(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Return the largest difference of all prompts, relative to the size of the logits."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


def compare(path: Path, form: str, texts: Sequence[str], dtype: str) -> dict[str, float]:
    """Return what the format loses, by the oracle and in seesay, and how far seesay is from the oracle."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    plain, rounded = compute_oracle(path, None, prompts), compute_oracle(path, form, prompts)
    ours_plain, ours = compute_ours(path, None, texts, dtype), compute_ours(path, form, texts, dtype)
    return {
        "oracle_loses": differ(rounded, plain),
        "seesay_loses": differ(ours, ours_plain),
        "seesay_from_oracle": differ(ours, rounded),
        "plain_from_plain": differ(ours_plain, plain),
    }


def write_random(source: Path, folder: Path) -> None:
    """Write a model of the sizes of `source` with random weights of a usual size."""
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(source))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    for file in source.glob("*.json"):
        if not (folder / file.name).exists() and "index" not in file.name:
            shutil.copy(file, folder)


def write_texts(number: int) -> list[str]:
    """Return random texts of 16 to 64 words."""
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(16, 64))) for _ in range(number)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="seesay-demo")
    parser.add_argument("--prompts", type=int, default=8)
    options = parser.parse_args(argv)
    source, texts = resolve_checkpoint(options.model), write_texts(options.prompts)
    with tempfile.TemporaryDirectory() as folder:
        write_random(source, Path(folder))
        for name, path in (("random", Path(folder)), (options.model, source)):
            for dtype in ("float32", "bfloat16"):
                for form in FORMS:
                    found = {key: round(value, 5) for key, value in compare(path, form, texts, dtype).items()}
                    report(workload="quantization-loss", model=name, dtype=dtype, form=form, **found)


if __name__ == "__main__":
    main()
