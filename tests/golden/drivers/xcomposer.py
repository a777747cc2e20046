"""InternLM-XComposer2 of three kinds. Sizes that the published code has as constants are replaced in its text by those
of config.json; everything else of it runs as it is.

The slow tokenizer of the published folders writes <s> before each text that it is given, as the one here does.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from golden.cases import NUM_TOKENS, Case, Turn
from golden.formula import fill_model
from golden.record import EMBEDDING, Record, note_pixels, note_rows

TRANSFORMERS = "4.37.2"
MARKER = "<ImageHere>"
RANK = 6
"""Of the additions to rows of pictures, of which the published models have 256."""
Sizes = Mapping[str, Mapping[str, int]]
"""By file: constants of the published code, and what replaces them."""


class Recorder:
    """The tokenizer, which keeps the ids that it made and those that it was given back."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.made: list[int] = []
        self.answer: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: Any, **options: Any) -> Any:
        encoded = self._tokenizer(text, **options)
        self.made += encoded["input_ids"][0].tolist()
        return encoded

    def decode(self, ids: list[int], **options: Any) -> str:
        """Return the text of an answer."""
        self.answer = ids
        return str(self._tokenizer.decode(ids, **options))


def load(code: Path, folder: Path, files: tuple[str, ...], sizes: Sizes) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Return the model with the sizes of `folder`, with its tokenizer, and the shapes of its tensors. `files` in the
    order in which they import each other."""
    from transformers import CLIPVisionConfig, CLIPVisionModel, PreTrainedTokenizerFast

    config = json.loads((folder / "config.json").read_text())
    tower = CLIPVisionModel(CLIPVisionConfig(**config["vision_config"]))
    modules = _import(code, files, sizes, tower)
    settings = modules["configuration_internlm_xcomposer2"].InternLMXcomposer2Config(**config)
    settings.attn_implementation = "eager"
    model = modules["modeling_internlm_xcomposer2"].InternLMXComposer2ForCausalLM(settings).eval()
    if hasattr(model, "video_mem_proj"):  # of OmniLive's model alone
        del model.video_mem_proj
    shapes = fill_model(model)
    names = ["input_ids", "attention_mask"]
    model.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, model_input_names=names)
    return model, shapes


def _import(code: Path, files: tuple[str, ...], sizes: Sizes, tower: torch.nn.Module) -> dict[str, Any]:
    """Return the published files as modules of one package. Weights of CLIP are not read, nor is a font."""
    package = types.ModuleType("published_xcomposer")
    package.__path__ = []
    sys.modules[package.__name__] = package
    sys.modules.setdefault("decord", types.SimpleNamespace(VideoReader=None))  # type: ignore[arg-type]
    modules: dict[str, Any] = {}
    for name in files:
        module: Any = types.ModuleType(f"{package.__name__}.{name}")
        sys.modules[module.__name__] = modules[name] = module
        setattr(package, name, module)
        source = (code / f"{name}.py").read_text()
        for old, new in sizes.get(name, {}).items():
            source = re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w.])", str(new), source)
        exec(compile(source, f"{name}.py", "exec"), module.__dict__)
        if hasattr(module, "CLIPVisionModel"):
            module.CLIPVisionModel = types.SimpleNamespace(from_pretrained=lambda _: tower)
        if hasattr(module, "get_font"):
            module.get_font = lambda: None
        if name == "build_mlp" and "plora" in modules:
            module.PLoRA = modules["plora"].PLoRA
    torch.Tensor.cuda = lambda self, *_: self  # type: ignore[method-assign]
    return modules


def run(model: Any, case: Case, *, queries: list[str], stacks: bool = False, **options: Any) -> Record:
    """Return what the published `chat` makes of a case, whose questions are `queries`, with markers in them. stacks: it
    takes the pixels of several pictures."""
    recorder, noted = Recorder(model.tokenizer), _Notes(model)
    history = [(query, turn.answer) for query, turn in zip(queries, case.turns, strict=True) if turn.answer is not None]
    has_own = model.tokenizer
    model.tokenizer = recorder
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{number}.png") for number, _ in enumerate(case.pictures)]
        drawn = [picture.draw() for picture in case.pictures]
        for picture, path in zip(drawn, paths, strict=True):
            picture.save(path)
        image: Any = paths if "use_meta" in options else paths[0] if paths else None
        if stacks and len(paths) > 1:
            image = torch.stack([model.vis_processor(picture) for picture in drawn])
        model.chat(
            recorder, queries[-1], image, history=history, max_new_tokens=NUM_TOKENS, do_sample=False,
            repetition_penalty=1.0, **options,
        )  # fmt: skip
    model.tokenizer = has_own
    noted.remove()
    made = iter(recorder.made)
    is_row = noted.is_row if noted.is_row is not None else [False] * len(recorder.made)
    ids = [EMBEDDING if is_picture else next(made) for is_picture in is_row]
    assert next(made, None) is None
    ends = (model.tokenizer.eos_token_id, model.tokenizer.convert_tokens_to_ids("[UNUSED_TOKEN_145]"))
    written = recorder.answer if noted.is_row is None else recorder.answer[1:]  # behind the token that begins them
    answer = [token for token in written if token not in ends]
    return Record(
        ids=ids, pixels=note_pixels(noted.pixels), rows=[note_rows(rows) for rows in noted.rows], tokens=answer
    )


class _Notes:
    """What the published code hands from one part to the next while it answers."""

    def __init__(self, model: Any) -> None:
        self.pixels: list[torch.Tensor] = []
        self.rows: list[torch.Tensor] = []
        self.is_row: list[bool] | None = None
        self._model, self._wrap, self._encode = model, model.interleav_wrap_chat, model.encode_img
        model.interleav_wrap_chat, model.encode_img = self._note_prompt, self._note_rows
        self._hook = model.vit.vision_tower.register_forward_pre_hook(self._note_pixels)

    def _note_pixels(self, _: Any, args: tuple[torch.Tensor, ...]) -> None:
        self.pixels.append(args[0])

    def _note_rows(self, *args: Any, **options: Any) -> torch.Tensor:
        rows: torch.Tensor = self._encode(*args, **options)
        self.rows += list(rows)
        return rows

    def _note_prompt(self, *args: Any, **options: Any) -> Any:
        found = self._wrap(*args, **options)
        self.is_row = found[1][0].tolist()
        return found

    def remove(self) -> None:
        """Leave the model as it was."""
        self._hook.remove()
        self._model.interleav_wrap_chat, self._model.encode_img = self._wrap, self._encode


def mark(turn: Turn) -> str:
    """Return a question with a marker for each of its pictures before it."""
    return MARKER * len(turn.pictures) + turn.question


def tiled_sizes(folder: Path, *, tile: int, grid: int) -> dict[str, dict[str, int]]:
    """Return what replaces the constants of models with tiles of `tile` pixels and grid² patches. The two layers of the
    projector, whose input is four patches, are as wide as the decoder."""
    config = json.loads((folder / "config.json").read_text())
    vision, size = config["vision_config"], config["hidden_size"]
    assert 4 * vision["hidden_size"] == size
    own, half = vision["image_size"] // vision["patch_size"], vision["image_size"] // vision["patch_size"] // 2
    joined = {str(tile): vision["image_size"], "4096": size}
    tower = {**joined, f"{grid} ** 2": own**2, str(grid // 2): half, str((grid // 2) ** 2): half**2}
    return {
        "build_mlp": tower,
        "ixc_utils": {str(tile): vision["image_size"]},
        "modeling_internlm2": {"256": RANK},
        "modeling_internlm_xcomposer2": {"4096": size},
    }


def square_sizes(folder: Path) -> dict[str, dict[str, int]]:
    """Return what replaces the constants of models that take a picture as one square."""
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    grid = vision["image_size"] // vision["patch_size"]
    assert math.isqrt(grid**2) == grid
    return {
        "build_mlp": {"35": grid, "1024": vision["hidden_size"], "4096": config["hidden_size"]},
        "modeling_internlm2": {"256": RANK},
    }
