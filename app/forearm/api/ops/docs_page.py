"""GET /docs: the content of /openapi.json as a page to read. It has no script and loads nothing."""

from __future__ import annotations

import json
from html import escape

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>forearm: API</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
:root { color-scheme: light dark } summary { cursor: pointer; padding: .3rem 0 }
code, pre { font-size: .9rem } pre { overflow: auto } p { white-space: pre-line }
</style><h1>forearm: API</h1><p>The same for programs: <a href="ROOT/openapi.json">openapi.json</a></p>
"""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
}

router = APIRouter(include_in_schema=False)


@router.get("/docs")
@router.get("/redoc")
async def documentation(request: Request) -> HTMLResponse:
    """Show every endpoint: its description, body and answers."""
    parts = [_HEAD.replace("ROOT", escape(request.scope.get("root_path", "")))]
    for path, methods in request.app.openapi()["paths"].items():
        for method, said in methods.items():
            title = f"<summary><code>{method.upper()} {escape(path)}</code></summary>"
            text = f"<p>{escape(str(said.get('description', said.get('summary', ''))))}</p>"
            schemas = [content["schema"] for content in said.get("requestBody", {}).get("content", {}).values()]
            body = "".join(f"<h4>Body</h4><pre>{escape(json.dumps(schema, indent=1))}</pre>" for schema in schemas)
            answers = "".join(f"<li>{code}: {escape(one['description'])}" for code, one in said["responses"].items())
            parts.append(f"<details>{title}{text}{body}<h4>Answers</h4><ul>{answers}</ul></details>\n")
    return HTMLResponse("".join(parts), headers=_HEADERS)
