"""Say what was said: messages in the shapes of the GenAI convention, before anything is cut, hashed or hidden.

A `Part` is one of `{"type": "text", "content": str}`, `{"type": "reasoning", "content": str}`,
`{"type": "tool_call", "id": str | None, "name": str, "arguments": Any}`,
`{"type": "tool_call_response", "id": str | None, "response": Any}`,
`{"type": "blob", "modality": str, "mime_type": str | None, "content": str | bytes}` (base64 text, or the bytes themselves),
`{"type": "uri", "modality": str, "mime_type": str | None, "uri": str}`, `{"type": "file", "modality": str, "file_id": str}`,
or `{"type": NAME, ...}` with the provider's own fields, for what the convention has no part. `modality` is "image", "audio",
"video" or "document". A `Message` is `{"role": str, "parts": [Part, ...]}`, with `"name"` where it has one and, in an answer,
`"finish_reason"`. A tool definition is `{"type": "function", "name": str, "description": str, "parameters": {...}}`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Part = dict[str, Any]
Message = dict[str, Any]


@dataclass(slots=True)
class Asked:
    """Hold what a request says: what the model is told to be, what it is told, and the tools it may call."""

    system: list[Part] = field(default_factory=list[Part])
    messages: list[Message] = field(default_factory=list[Message])
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
