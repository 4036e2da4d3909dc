"""Write the OpenAPI document of the page's server into a file, from which the page's own types are made."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fastapi import FastAPI

from ravi_otel._ui.app import router

app = FastAPI(title="ravi-otel ui", version="0")
app.include_router(router)
Path(sys.argv[1]).write_text(json.dumps(app.openapi(), indent=1, sort_keys=True), encoding="utf-8")
