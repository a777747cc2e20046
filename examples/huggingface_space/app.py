"""A Hugging Face Space: the WebUI for one model. The variable MODEL names another than the built-in one."""

from __future__ import annotations

import os

from seesay import EngineConfig
from seesay.ui import run_local

if __name__ == "__main__":
    run_local(
        os.environ.get("MODEL", "seesay-demo"),
        backend_config=EngineConfig(session_len=4096, cache_max_entry_count=0.5),
        server_name="0.0.0.0",
        server_port=int(os.environ.get("PORT", "7860")),
    )
