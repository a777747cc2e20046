"""The API documentation at `/`: Swagger UI, served from files in the package, without network access."""

from __future__ import annotations

import json
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

DOCS_PATHS = frozenset({"/", "/openapi.json", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js"})
SIMPLE_DOCUMENT = "/openapi-simple.json"

_FOLDER = Path(__file__).parent / "swagger"
_OPTIONS = {
    "url": "openapi.json",
    "dom_id": "#swagger-ui",
    "deepLinking": True,
    "validatorUrl": None,  # otherwise the page requests a badge from validator.swagger.io
}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({options})</script>
</body>
</html>
"""
_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'"
)


def add_docs_page(app: FastAPI) -> None:
    """Serve the page and its files. Their URLs are relative, so that a proxy may serve them under another path."""
    page = _PAGE.format(title=app.title, options=json.dumps(_OPTIONS))

    async def show(_: Request) -> Response:
        return HTMLResponse(page, headers={"content-security-policy": _POLICY})

    async def send_file(request: Request) -> Response:
        # The URLs have no version, so a browser must revalidate them after an update.
        return FileResponse(_FOLDER / Path(request.url.path).name, headers={"cache-control": "no-cache"})

    app.add_route("/", show, include_in_schema=False)
    for path in sorted(DOCS_PATHS - {"/", "/openapi.json"}):
        app.add_route(path, send_file, include_in_schema=False)
