"""`/docs`: the API reference as a page (Swagger UI), from assets of an installed package; nothing is fetched elsewhere.

Only where `http.docs` turns it on: then the page and the description that it shows need no credential.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse

from gateway.errors import ConfigError, NotFound

PATH = "/docs"
ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'"
"""The page begins with a script of a few lines that names the description."""


def routes(title: str, openapi_url: str) -> APIRouter:
    """Raises `ConfigError` where the package with the assets is not installed."""
    router, folder = APIRouter(), _assets()
    page = get_swagger_ui_html(
        openapi_url=openapi_url,
        title=title,
        swagger_js_url=f"{PATH}/swagger-ui-bundle.js",
        swagger_css_url=f"{PATH}/swagger-ui.css",
        swagger_favicon_url=f"{PATH}/favicon.png",
    ).body

    @router.get(PATH, include_in_schema=False)
    async def reference() -> HTMLResponse:
        return HTMLResponse(bytes(page), headers={"content-security-policy": POLICY})

    @router.get(PATH + "/{name}", include_in_schema=False)
    async def asset(name: str) -> FileResponse:
        if name not in ASSETS:
            raise NotFound("This path does not exist.", code="not_found")
        return FileResponse(folder / name, media_type=ASSETS[name])

    return router


def _assets() -> Path:
    found = find_spec("fastapi_offline")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "`http.docs` needs the assets of the page, which are not installed",
            hint="pip install 'esclusa[docs]', or turn `http.docs` off",
        )
    return Path(found.submodule_search_locations[0]) / "static"
