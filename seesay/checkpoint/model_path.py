"""Find the folder of a model: given, built in, or downloaded from the hub."""

from __future__ import annotations

import os
from pathlib import Path

from seesay.checkpoint.download_progress import make_bar_class
from seesay.errors import CheckpointError

DEMO_MODEL = "seesay-demo"
HUB_PATTERNS = ("*.json", "*.safetensors", "tokenizer*", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.ttf")
CODE_PATTERNS = ("*.py",)
CONFIG_PATTERNS = ("config.json", "params.json", "generation_config.json", "hf_quant_config.json")


def resolve_checkpoint(
    model_path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    download_dir: str | os.PathLike[str] | None = None,
    with_code: bool = False,
) -> Path:
    """Return the local folder of `model_path`: a folder, 'seesay-demo', or a hub id (downloaded if needed).

    revision: branch, tag or commit; download_dir: the cache folder; with_code: whether Python files are downloaded,
    too. They apply to hub ids only.
    Raises `CheckpointError` if there is no such folder or the download fails.
    """
    patterns = [*HUB_PATTERNS, *CODE_PATTERNS] if with_code else list(HUB_PATTERNS)
    return _find_folder(model_path) or _download(
        os.fspath(model_path), revision=revision, download_dir=download_dir, patterns=patterns
    )


def resolve_config(
    model_path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    download_dir: str | os.PathLike[str] | None = None,
) -> Path:
    """Return a folder as `resolve_checkpoint` does, but of a model of the hub download the configuration alone."""
    return _find_folder(model_path) or _download(
        os.fspath(model_path), revision=revision, download_dir=download_dir, patterns=list(CONFIG_PATTERNS)
    )


def _find_folder(model_path: str | os.PathLike[str]) -> Path | None:
    """Return the folder on this machine; None for a hub id. Raises `CheckpointError` for what is neither."""
    if not isinstance(model_path, str | os.PathLike):
        raise TypeError(f"model_path must be the path of a folder or a hub id, got {type(model_path).__name__}")
    name = os.fspath(model_path)
    if not name:
        raise CheckpointError(f"model path must not be empty: pass a folder, a hub id, or {DEMO_MODEL!r}")
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name == DEMO_MODEL:
        return Path(__file__).parents[1] / "demo" / "checkpoint"
    if path.is_file():
        raise CheckpointError(f"model path {name!r} is a file: pass the folder that holds its config.json")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1 or "\\" in name:
        raise CheckpointError(
            f"model path {name!r}: no such folder. Pass a folder with config.json and safetensors files, "
            f"a hub id like 'Qwen/Qwen2.5-VL-3B-Instruct', or {DEMO_MODEL!r}"
        )
    return None


def _download(
    repo_id: str, *, revision: str | None, download_dir: str | os.PathLike[str] | None, patterns: list[str]
) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    at = f" at revision {revision!r}" if revision else ""
    advice = "If you have the model on disk, pass the path of its folder instead of the id."
    try:
        folder = snapshot_download(
            repo_id,
            revision=revision,
            cache_dir=None if download_dir is None else os.fspath(download_dir),
            allow_patterns=patterns,
            tqdm_class=make_bar_class(),
        )
    except HFValidationError as error:
        raise CheckpointError(f"model path {repo_id!r} is neither a folder nor a hub id: {error}") from None
    except LocalEntryNotFoundError:
        raise CheckpointError(
            f"model {repo_id!r}{at} is not in the local cache and the Hugging Face hub cannot be reached. {advice}"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"model {repo_id!r}{at} cannot be downloaded: {reason} {advice}") from None
    return Path(folder)
