"""Put the WebSocket connections of the `openai` package under observation and limits, and take them off again."""

from __future__ import annotations

from ravi_otel.instrumentation.openai.sockets.modules import Sockets

__all__ = ["Sockets"]
