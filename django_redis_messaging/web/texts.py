"""Texts of users as HTML: escaped, bounded, with links that are what they show."""

from __future__ import annotations

import re
from html import escape
from itertools import pairwise
from unicodedata import category

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

#: characters of a message's text in one piece of HTML; longer texts have a page of their own
MAX_SHOWN_LENGTH = 20_000
#: bytes of such a text as HTML, not counting links
MAX_SHOWN_BYTES = 64 * 1024
#: web addresses in one text that become links
MAX_LINKS = 100
#: characters of the longest web address that becomes a link
MAX_ADDRESS_LENGTH = 2_000
#: lines that are shown before "Show all"
FOLD_LINES = 20
#: characters of a line; a longer line counts as several
LINE_LENGTH = 80

_ADDRESS = re.compile(r"""https?://[^\s<>"'\x00-\x1f]+""")
#: punctuation that ends a sentence doesn't belong to the address before it
_TRAILING = ".,;:!?)]}*_'\""
#: letters and symbols that are displayed as nothing
_BLANKS = "\u115f\u1160\u2800\u3164\uffa0"
#: embeddings, overrides, isolates and marks: they change the order in which the characters are displayed
_BIDI_CONTROLS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def without_bidi_controls(text: str) -> str:
    """The text without the invisible characters that change its direction.

    A name with such a character can look like another name, and can reverse the text that follows it.

    >>> without_bidi_controls("Ann\\u202e gpj")
    'Ann gpj'
    """
    return _BIDI_CONTROLS.sub("", text)


def visible_text(text: str) -> str:
    """A name or title without direction controls; empty if nothing of it can be seen.

    >>> visible_text("\\u202eAnn"), visible_text("\\u200b \\u2800")
    ('Ann', '')
    """
    cleaned = without_bidi_controls(text)
    is_visible = any(category(each)[0] in "LNPS" and each not in _BLANKS for each in cleaned)
    return cleaned if is_visible else ""


def body_html(body: str) -> SafeString:
    """The body of a message as HTML. What follows the first FOLD_LINES lines is folded.

    Of a body that is longer than MAX_SHOWN_LENGTH or MAX_SHOWN_BYTES, only these lines.
    """
    end = _fold_position(body)
    shown = linkify(body[:end])
    if end == len(body) or is_cut(body):
        return shown
    # All links of the body count.
    folded = linkify(body[end:], max_links=MAX_LINKS - shown.count("<a "))
    return format_html(
        '{}<details class="drm-fold"><summary><span>{}</span><span>{}</span></summary>{}</details>',
        shown,
        _("Show all"),
        _("Show less"),
        folded,
    )


def is_cut(body: str) -> bool:
    """Whether `body_html` contains only the beginning of the body."""
    return len(body) > MAX_SHOWN_LENGTH or len(escape(body, quote=False).encode()) > MAX_SHOWN_BYTES


def split(body: str) -> list[str]:
    """The body in parts of at most about MAX_SHOWN_LENGTH characters. No part ends inside a link.

    >>> [len(part) for part in split("x" * 50_000)]
    [20000, 20000, 10000]
    """
    ends = [0]
    while ends[-1] < len(body):
        ends.append(_outside_links(body, min(ends[-1] + MAX_SHOWN_LENGTH, len(body))))
    return [body[start:end] for start, end in pairwise(ends)]


def _fold_position(body: str) -> int:
    """The number of characters in the first FOLD_LINES lines."""
    end, lines = 0, FOLD_LINES
    for line in body[: FOLD_LINES * MAX_ADDRESS_LENGTH].splitlines(keepends=True):
        needed = max(1, -(-len(line.rstrip()) // LINE_LENGTH))
        if needed > lines:
            limit = end + lines * LINE_LENGTH
            # After the last space, else anywhere but inside a link.
            return body.rfind(" ", end, limit) + 1 or _outside_links(body, limit) if lines else end
        end, lines = end + len(line), lines - needed
    return end


def _outside_links(body: str, position: int) -> int:
    """`position`, or the end of the web address that contains it."""
    start = max(position - MAX_ADDRESS_LENGTH, 0)
    for match in _ADDRESS.finditer(body, start, position + MAX_ADDRESS_LENGTH):
        if match.start() < position < match.end() and _is_link(match[0]):
            return match.end()
    return position


def linkify(text: str, *, max_links: int = MAX_LINKS) -> SafeString:
    """Escape the text and turn its first `max_links` web addresses into links.

    >>> linkify("<b> see https://example.com/?a=1&b.")
    '&lt;b&gt; see <a href="https://example.com/?a=1&amp;b" dir="ltr" \
rel="noopener noreferrer nofollow ugc" target="_blank">https://example.com/?a=1&amp;b</a>.'
    """
    parts: list[str] = []
    end = links = 0
    for match in _ADDRESS.finditer(text):
        if links == max_links:
            break
        address = match[0].rstrip(_TRAILING)
        target = without_bidi_controls(address)
        if not _is_link(target):
            continue
        parts += [escape(text[end : match.start()], quote=False), _link(target)]
        end = match.start() + len(address)
        links += 1
    # All parts are escaped, by escape() or _link().
    return mark_safe("".join([*parts, escape(text[end:], quote=False)]))  # noqa: S308


def _is_link(address: str) -> bool:
    return len(address) <= MAX_ADDRESS_LENGTH and not address.endswith("//")


def _link(address: str) -> str:
    # An address has no quotes: see _ADDRESS. `dir` isolates it from controls in the text around it.
    return '<a href="{0}" dir="ltr" rel="noopener noreferrer nofollow ugc" target="_blank">{0}</a>'.format(
        escape(address, quote=False)
    )
