"""`seesay serve …`: the API server, a distributor for several, the WebUI, and a client."""

from __future__ import annotations

from seesay.commands.command import Command
from seesay.commands.serve import serve_client, serve_gradio, serve_proxy, serve_server

COMMAND = Command(
    name="serve",
    summary="serve a model over HTTP or in a browser, or chat with a server",
    children=(serve_server.COMMAND, serve_client.COMMAND, serve_gradio.COMMAND, serve_proxy.COMMAND),
    examples="""\
  seesay serve api_server Qwen/Qwen2.5-VL-7B-Instruct --server-port 23333
  seesay serve api_client http://localhost:23333
  seesay serve gradio http://localhost:23333 --server-port 6006
  seesay serve proxy --nodes http://10.0.0.1:23333 http://10.0.0.2:23333
""",
)
