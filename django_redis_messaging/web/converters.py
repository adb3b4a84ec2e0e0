"""Chat ids in URLs."""

from __future__ import annotations

import base64
import binascii
import re

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class ChatIdConverter:
    """Writes an id of letters, digits, "-" and "_" as it is, and any other id as "~" and base64.

    "a/b", ".." or a line break would be changed on the way: browsers and servers normalize paths.
    """

    regex = r"~?[A-Za-z0-9_-]+"

    def to_python(self, value: str) -> str:
        if not value.startswith("~"):
            return value
        try:
            padded = value[1:] + "=" * (-len(value[1:]) % 4)
            return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ValueError("not a chat id") from error

    def to_url(self, value: str) -> str:
        if _PLAIN.fullmatch(value):
            return value
        return "~" + base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")
