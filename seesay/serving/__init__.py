"""HTTP: OpenAI and Anthropic APIs, metrics, client. Importing this package imports neither torch nor FastAPI."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from seesay.errors import MissingExtraError

if TYPE_CHECKING:
    from seesay.serving.app import create_app
    from seesay.serving.server import run_server
    from seesay.serving.settings import ServerSettings

__all__ = ["ServerSettings", "create_app", "require_packages", "run_server"]

_HOMES = {"create_app": "app", "run_server": "server", "ServerSettings": "settings"}
_PACKAGES = (
    "aiohttp",
    "fastapi",
    "httptools",
    "prometheus_client",
    "pydantic",
    "python_multipart",
    "starlette",
    "uvicorn",
    "yarl",
)


def require_packages() -> None:
    """Raise `MissingExtraError` unless the packages of a server are installed. Imports none of them."""
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise MissingExtraError("the server", package=package, extra="serve")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        raise MissingExtraError("the server", package=package, extra="serve") from error
