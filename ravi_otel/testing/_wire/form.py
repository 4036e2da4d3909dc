"""Read the fields of a form that carries files."""

from __future__ import annotations

from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, Final

_KIND: Final = "multipart/form-data"
_WORDS: Final = {"true": True, "false": False}


def is_form(content_type: str) -> bool:
    """Tell whether a body is a form with files."""
    return content_type.lower().startswith(_KIND)


def fields_of(raw: bytes, content_type: str) -> dict[str, Any]:
    """Give a form's fields by name, one that ends in `[]` as a list without it; a file is its name, size and type."""
    message = BytesParser(policy=HTTP).parsebytes(b"content-type: " + content_type.encode() + b"\r\n\r\n" + raw)
    found: dict[str, Any] = {}
    for part in message.iter_parts() if message.is_multipart() else ():
        name = str(part.get_param("name", "", header="content-disposition"))
        content = part.get_payload(decode=True)
        data = content if isinstance(content, bytes) else b""
        file_name = part.get_filename()
        value: Any = _value(data) if file_name is None else {"name": file_name, "size": len(data), "type": part.get_content_type()}
        if name.endswith("[]"):
            found.setdefault(name[:-2], []).append(value)
        else:
            found[name] = value
    return found


def _value(data: bytes) -> Any:
    text = data.decode("utf-8", "replace")
    return _WORDS.get(text, text)
