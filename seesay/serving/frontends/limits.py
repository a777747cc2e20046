"""The limits of a server, divided among its frontends."""

from __future__ import annotations

from dataclasses import replace

from seesay.errors import ConfigError
from seesay.serving.settings import ServerSettings

_DIVIDED = {
    "max_concurrent_requests": "--max-concurrent-requests",
    "max_queue": "--max-queue",
    "max_total_body_bytes": "--max-total-body-bytes",
    "max_sequences_per_key": "--max-sequences-per-key",
    "max_live_sessions": "--max-live-sessions",
}


def divide_limits(settings: ServerSettings) -> ServerSettings:
    """Return the settings of each frontend. Together they do not exceed the limits. Raises `ConfigError` for a limit
    that cannot be divided."""
    count = settings.num_frontends
    shares = {}
    for name, option in _DIVIDED.items():
        limit = getattr(settings, name)
        if limit is None:
            continue
        share, least = limit // count, settings.max_body_bytes if name == "max_total_body_bytes" else 1
        if share < least and limit > 0:
            each = "the largest body (--max-body-bytes)" if least > 1 else "1"
            raise ConfigError(
                f"{option} is divided among the {count} processes of --frontends, each of which needs at least {each}: "
                f"it must be at least {count * least}, got {limit}"
            )
        shares[name] = share
    return replace(settings, num_frontends=1, **shares)
