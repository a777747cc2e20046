"""What a server's owner may set, frozen and checked where it is built. Wrong values raise `ConfigError`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from seesay.config import MediaLimits
from seesay.config.checks import check_types
from seesay.errors import ConfigError
from seesay.log import LEVELS


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How the HTTP server behaves. Times are in seconds.

    host, port: where it listens. model_name: what clients call the model; None is the model path (of a folder, its
        last part). model_aliases: further names that requests may give; answers have model_name. any_model_name: take
        whatever name a request gives.
    api_keys: any of them opens the server; none leaves it open to all.
    cors_origins: browser pages of these origins may call the server ('*': all); none: no page of another origin may.
        cors_methods, cors_headers, cors_credentials: what such pages may send.
    max_concurrent_requests: requests answered at a time; max_queue more wait, and what comes then is refused with 429.
    max_sequences_per_key: most answers of one API key (without keys, of one client address) computed at a time; its
        others wait. None is no such limit: where there is too little room for all, keys take turns.
    max_choices: most answers of one request (`n`, times the number of prompts).
    request_timeout_s: longest time for an answer, waiting included. body_timeout_s: longest time for a body to arrive.
    max_body_bytes: largest body. max_total_body_bytes: largest sum of all bodies of requests that are answered or wait.
    drain_timeout_s: how long running answers may go on after SIGTERM.
    generation_defaults: what a request that leaves out temperature, top_p, top_k, min_p or repetition_penalty gets: the
        'model's (its generation_config.json), or 'openai's (temperature 1, nothing else).
    unknown_fields: 'refuse' requests with unknown fields, or 'ignore' these and name them in a `Warning` header.
    max_stored_responses: how many answers of /v1/responses are kept for `previous_response_id`.
    log_level, max_log_len: as in `pipeline`; prompts are logged at INFO and DEBUG only, cut to max_log_len characters.
    media: what pictures and clips may cost and where they may come from. Hand the same to the engine.
    ssl_certfile, ssl_keyfile, ssl_keyfile_password: serve https.
    """

    host: str = "0.0.0.0"
    port: int = 23333
    model_name: str | None = None
    model_aliases: Sequence[str] = ()
    any_model_name: bool = False
    api_keys: Sequence[str] = field(default=(), repr=False)
    cors_origins: Sequence[str] = ()
    cors_methods: Sequence[str] = ("GET", "POST", "DELETE", "OPTIONS")
    cors_headers: Sequence[str] = ("*",)
    cors_credentials: bool = False
    max_concurrent_requests: int = 256
    max_queue: int = 256
    max_sequences_per_key: int | None = None
    max_choices: int = 128
    request_timeout_s: float = 600.0
    body_timeout_s: float = 60.0
    max_body_bytes: int = 64 << 20
    max_total_body_bytes: int = 1 << 30
    drain_timeout_s: float = 30.0
    generation_defaults: Literal["model", "openai"] = "model"
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    max_stored_responses: int = 256
    log_level: str = "WARNING"
    max_log_len: int | None = 200
    media: MediaLimits = field(default_factory=MediaLimits.for_server)
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_keyfile_password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_types(self)
        least: dict[str, float] = {
            "port": 0, "max_concurrent_requests": 1, "max_queue": 0, "max_choices": 1, "max_body_bytes": 1,
            "max_total_body_bytes": 1, "drain_timeout_s": 0, "max_stored_responses": 0,
        }  # fmt: skip
        for name, bound in least.items():
            if not getattr(self, name) >= bound:
                raise ConfigError(f"{name}={getattr(self, name)!r}: must be at least {bound}")
        if self.max_sequences_per_key is not None and self.max_sequences_per_key < 1:
            raise ConfigError(f"max_sequences_per_key={self.max_sequences_per_key}: must be at least 1, or None")
        for name in ("request_timeout_s", "body_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)!r}: must be above 0")
        if self.port > 65535:
            raise ConfigError(f"port={self.port}: must be at most 65535")
        for key in self.api_keys:
            if not key or not key.isascii() or key != key.strip():
                raise ConfigError("api_keys: a key must be ASCII text, not empty, without spaces around it")
        if self.model_name == "" or "" in self.model_aliases:
            raise ConfigError("model_name, model_aliases: a name must not be empty")
        if self.log_level.upper() not in LEVELS:
            raise ConfigError(f"log_level={self.log_level!r}: must be one of {', '.join(LEVELS)}")
        if (self.ssl_keyfile is not None) and self.ssl_certfile is None:
            raise ConfigError("ssl_keyfile needs ssl_certfile too")
        if "*" in self.cors_origins and self.cors_credentials:
            raise ConfigError("cors_credentials: name the origins; with '*' every page on the web could use a session")
