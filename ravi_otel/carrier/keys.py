"""Sign what is carried, and know whose it is: HMAC-SHA256 with keys that have ids, so that one can follow another."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ravi_otel.errors import ConfigurationError

VARIABLE: Final = "RAVI_CARRY_KEYS"
LEAST_SECRET: Final = 16
"""How many characters a secret has at least."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_MOST_KEYS: Final = 32
_WAY_OUT: Final = f"write {VARIABLE}=ID:SECRET,ID:SECRET, with ids of letters and digits, and secrets of {LEAST_SECRET} characters or more"


@dataclass(frozen=True, slots=True)
class Keys:
    """Hold the keys by their ids: the first one signs, each of them verifies."""

    by_id: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)  # a secret is never shown

    def __bool__(self) -> bool:
        return bool(self.by_id)

    @property
    def signing(self) -> str:
        """Return the id of the key that signs; empty without keys."""
        return next(iter(self.by_id), "")

    def sign(self, purpose: str, payload: bytes) -> tuple[str, bytes]:
        """Return the id of the key that signs now, and the signature of `payload` for `purpose`."""
        key_id = self.signing
        return key_id, _mac(self.by_id[key_id], purpose, key_id, payload)

    def verifies(self, purpose: str, key_id: str, payload: bytes, signature: bytes) -> bool:
        """Whether it was signed for this purpose, by who has the key of that id; takes as long for any that is not."""
        secret = self.by_id.get(key_id)
        return secret is not None and hmac.compare_digest(_mac(secret, purpose, key_id, payload), signature)


def _mac(secret: bytes, purpose: str, key_id: str, payload: bytes) -> bytes:
    return hmac.new(secret, f"{purpose}\n{key_id}\n".encode("ascii") + payload, hashlib.sha256).digest()


def read_keys(text: str) -> Keys:
    """Read `ID:SECRET,ID:SECRET`; ConfigurationError for anything else, which shows nothing of it: an id may be a secret."""
    found: dict[str, bytes] = {}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > _MOST_KEYS:
        raise ConfigurationError(f"{VARIABLE} has more than {_MOST_KEYS} keys: keep the one that signs and those still in use.")
    for place, part in enumerate(parts, 1):
        key_id, colon, secret = part.partition(":")
        if not colon or _ID.fullmatch(key_id) is None:
            raise ConfigurationError(f"{VARIABLE}: key {place} has no id of letters and digits before a colon: {_WAY_OUT}.")
        if len(secret) < LEAST_SECRET:
            raise ConfigurationError(f"{VARIABLE}: the secret of key {place} is shorter than {LEAST_SECRET} characters: {_WAY_OUT}.")
        if key_id in found:
            raise ConfigurationError(f"{VARIABLE} has the id of key {place} twice: {_WAY_OUT}.")
        found[key_id] = secret.encode("utf-8", "surrogateescape")
    return Keys(found)
