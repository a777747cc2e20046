"""A Hugging Face Space: the WebUI for one model. The variable MODEL names another than the built-in one."""

from __future__ import annotations

import os

from own_package import provide_seesay


def main() -> None:
    provide_seesay()
    model = os.environ.get("MODEL", "seesay-demo")
    port = int(os.environ.get("PORT", "7860"))
    if os.environ.get("SPACES_ZERO_GPU"):
        from zero_gpu import run

        run(model, port=port)
        return
    from seesay import EngineConfig
    from seesay.ui import run_local

    config = EngineConfig(session_len=4096, cache_max_entry_count=0.5)
    run_local(model, backend_config=config, server_name="0.0.0.0", server_port=port)


if __name__ == "__main__":
    main()
