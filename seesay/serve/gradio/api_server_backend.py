"""The WebUI for a running server, under the module name that LMDeploy has for it."""

from __future__ import annotations

from seesay.ui.app import run_webui


def run_api_server(api_server_url: str, server_name: str = "localhost", server_port: int = 6006) -> None:
    """Serve the WebUI for the server at `api_server_url`. See `seesay.ui.run_webui`."""
    run_webui(api_server_url, server_name=server_name, server_port=server_port)


__all__ = ["run_api_server"]
