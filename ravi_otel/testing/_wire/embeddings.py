"""Answer /v1/embeddings."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
from collections.abc import Sequence
from typing import Any, cast

from ravi_otel.testing._script import Request, Text, Vector
from ravi_otel.testing._wire.counts import as_embeddings, prompt_tokens, stated
from ravi_otel.testing._wire.payload import Payload, plain


def answer(request: Request, given: Vector | Text) -> Payload:
    """Give one vector for each input, as floats or as the base64 the client asks for; `Text` gives vectors of 8."""
    dim = request.body.get("dimensions")
    size = dim if isinstance(dim, int) and dim > 0 else getattr(given, "dim", 8)
    packed = request.body.get("encoding_format") == "base64"
    data = [_entry(at, vector(text, size), packed=packed) for at, text in enumerate(inputs_of(request.body.get("input")))]
    usage = as_embeddings(stated(given.usage, lambda: (prompt_tokens(request.body.get("input")), 0)))
    body: dict[str, Any] = {"id": f"embd-{request.index + 1}", "object": "list", "data": data, "model": given.model or request.model}
    return plain(body if usage is None else body | {"usage": usage})


def inputs_of(value: object) -> Sequence[object]:
    """Tell one input from many: token ids in a flat list are one input."""
    if not isinstance(value, list):
        return [value]
    items = cast("list[object]", value)
    return [items] if items and isinstance(items[0], int) else items


def vector(text: object, dim: int) -> list[float]:
    """Give a unit vector, the same for the same text."""
    seed = json.dumps(text).encode()
    rough = [struct.unpack(">q", hashlib.blake2b(seed, digest_size=8, salt=at.to_bytes(8)).digest())[0] / 2**63 for at in range(dim)]
    norm = math.sqrt(sum(number * number for number in rough)) or 1.0
    return [number / norm for number in rough]


def _entry(at: int, vector: Sequence[float], *, packed: bool) -> dict[str, Any]:
    shown: Any = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if packed else vector
    return {"object": "embedding", "index": at, "embedding": shown}
