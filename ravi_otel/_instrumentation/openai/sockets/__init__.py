"""Observe and limit the WebSocket connections of the `openai` package."""
