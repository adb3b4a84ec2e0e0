"""Tables of text, for commands."""

from __future__ import annotations

from collections.abc import Sequence


def table(lines: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Align the cells of lines, of which the first is the head; the first `left` columns to the left.

    >>> print(table([("queue", "ready"), ("mail", "12"), ("a", "7")]))
    queue  ready
    mail      12
    a          7
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    """A name as one line for a terminal: control characters are escaped.

    >>> printable("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
