"""GET /: a page to try the model, with live figures beside it. It consists of static files and loads nothing else.

web/vendor: libraries as their npm packages have them (SHA256SUMS, LICENSES).
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

_FOLDER = Path(__file__).parent / "web"
_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".html": "text/html",
    ".woff2": "font/woff2",
}
# These headers make the browser prevent the page from contacting other servers and from running a model's output.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_FILES = {path.relative_to(_FOLDER).as_posix(): path for path in _FOLDER.rglob("*") if path.suffix in _TYPES}
# Open paths: without a key the page only asks for one.
PATHS = frozenset(("/", *(f"/playground/{name}" for name in _FILES)))

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page(request: Request) -> Response:
    """Return the page, with links under the path at which a proxy offers this server."""
    root = request.scope.get("root_path", "")
    content = _FILES["index.html"].read_bytes().replace(b'="playground/', f'="{root}/playground/'.encode())
    return _file(request, "index.html", content.replace(b'href="metrics"', f'href="{root}/metrics"'.encode()))


@router.get("/playground/{name:path}")
async def part(request: Request) -> Response:
    """Return a file of the page."""
    name = request.path_params["name"]
    if name not in _FILES or name == "index.html":
        raise HTTPException(404, f"there is no {name[:100]!r}")
    return _file(request, name, _FILES[name].read_bytes())


def _file(request: Request, name: str, content: bytes) -> Response:
    tag = f'"{sha256(content).hexdigest()[:16]}"'
    headers = {**_HEADERS, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[Path(name).suffix], headers=headers)
