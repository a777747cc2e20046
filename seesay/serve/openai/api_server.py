"""The server under the module name that LMDeploy has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.moved import advise

if not TYPE_CHECKING:
    __getattr__ = advise(
        __name__,
        {
            "serve": "use seesay.serve(...), which starts a process and returns a client, or `seesay serve api_server`",
            "app": "use seesay.serving.create_app(engine, settings)",
        },
    )
