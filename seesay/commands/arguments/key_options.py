"""Options that name API keys, or environment variables that hold them."""

from __future__ import annotations

import argparse
import os

from seesay.errors import ConfigError

API_KEYS_VARIABLE = "SEESAY_API_KEYS"
ADMIN_KEYS_VARIABLE = "SEESAY_ADMIN_KEYS"
ADVICE = f"set --api-keys or {API_KEYS_VARIABLE}, or listen on --server-name 127.0.0.1"


def add_api_keys(group: argparse._ArgumentGroup, help: str) -> None:
    group.add_argument(
        "--api-keys",
        nargs="*",
        metavar="KEY",
        help=f"{help}; set {API_KEYS_VARIABLE}=key1,key2 instead to keep them out of the process list",
    )


def add_admin_keys(group: argparse._ArgumentGroup, help: str) -> None:
    group.add_argument("--admin-keys", nargs="*", metavar="KEY", help=f"{help}; or set {ADMIN_KEYS_VARIABLE}")


def read_admin_keys(given: list[str] | None) -> tuple[str, ...]:
    return read_keys("--admin-keys", given, ADMIN_KEYS_VARIABLE)


def read_api_keys(given: list[str] | None) -> tuple[str, ...]:
    """Return the keys of `--api-keys`, else those of the environment. Raises ConfigError where either names none."""
    return read_keys("--api-keys", given, API_KEYS_VARIABLE)


def read_keys(option: str, given: list[str] | None, variable: str) -> tuple[str, ...]:
    if given is not None:
        if not given:
            raise ConfigError(f"{option} requires at least one key")
        return tuple(given)
    listed = os.environ.get(variable, "")
    keys = tuple(key.strip() for key in listed.split(",") if key.strip())
    if listed and not keys:
        raise ConfigError(f"{variable}={listed!r} names no key: set it to KEY1,KEY2,... or unset it")
    return keys
