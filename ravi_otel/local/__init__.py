"""Keep and show what happened in this process, without a backend."""

from ravi_otel.local.export import as_json
from ravi_otel.local.record import RunRecord
from ravi_otel.local.report import console, render

__all__ = ["RunRecord", "as_json", "console", "render"]
