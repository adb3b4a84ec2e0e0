"""Texts of users as HTML: escaped, bounded, with code, mentions, and links that are what they show."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import islice, pairwise
from typing import NamedTuple
from unicodedata import category

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ..services.directories.folding import fold

#: characters of a message's text in one piece of HTML; longer texts have a page of their own
MAX_SHOWN_LENGTH = 20_000
#: bytes of such a text as HTML, not counting links
MAX_SHOWN_BYTES = 64 * 1024
#: web addresses and pieces of code in one text that are marked up
MAX_MARKS = 100
#: characters of the longest web address that becomes a link
MAX_ADDRESS_LENGTH = 2_000
#: lines that are shown before "Show all"
FOLD_LINES = 20
#: characters of a line; a longer line counts as several
LINE_LENGTH = 80

#: code between lines that begin with three backticks; code between two backticks; a web address. Any line
#: that begins with three backticks ends a block, whatever follows them, so that no text is searched twice.
_TOKEN = re.compile(
    r"""^```[^\n]*\n(?P<block>.*?)^```[^\n]*(?:\n|\Z)|`(?P<code>[^`\n]+)`"""
    r"""|(?P<address>(?:https?://|(?<![\w@/.-])www\.(?=[\w-]+\.\w))[^\s<>"'`\x00-\x1f]+)""",
    re.MULTILINE | re.DOTALL,
)
#: punctuation that ends a sentence doesn't belong to the address before it
_TRAILING = ".,;:!?)]}*_'\""
#: but a closing bracket does if the address has the opening one, too
_BRACKETS = {")": "(", "]": "[", "}": "{"}
#: letters and symbols that are displayed as nothing, and unassigned characters that are reserved for that
_BLANKS = re.compile("[\u115f\u1160\u2065\u2800\u3164\uffa0\ufff0-\ufff8\U0001d159\U000e0000-\U000e0fff]")
#: embeddings, overrides, isolates and marks: they change the order in which the characters are displayed
_BIDI_CONTROLS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: what mail programs show as links, besides domains: a scheme, a host of Windows, an IPv4 address
_MAIL_LINK = re.compile(
    r"(?:\b[a-z][a-z0-9+.-]{0,30}:[/\\]|\b(?:www\.|mailto:|tel:|sms:|callto:|sip:)|\\\\)\S*[\w/]"
    r"|\d{1,3}(?:\.\d{1,3}){3}(?:\S*[\w/])?",
    re.IGNORECASE,
)
#: dots as in domains, but not those of numbers: full stops, then other characters that domains allow as dots
_INNER_DOT = re.compile(
    r"(?<=\S)(?:(?<!\d)\.(?=[\w\u200c\u200d])|(?<=\d)\.(?=[^\W\d])|[\u2024\u3002\ufe52\uff0e\uff61](?=[a-z0-9]))",
    re.IGNORECASE,
)
#: categories of control characters, of invisible ones, and of halves of characters; except those that join
#: letters and emoji
_INVISIBLE = {"Cc", "Cf", "Cs"}
_JOINERS = "\u200c\u200d"
#: categories of characters that alone display nothing: those, spaces, and marks. Unassigned characters may be
#: new emoji that this Python doesn't know.
_BLANK_CATEGORIES = {*_INVISIBLE, "Zs", "Zl", "Zp", "Mn", "Mc", "Me"}
#: quotation marks with which a text could seem to end
_QUOTATION_MARKS = dict.fromkeys(map(ord, '"“”„‟«»「」『』〝〞\uff02'), "'")
#: places with an @ in a message that are looked at
MAX_PLACES = 100
#: characters after an @ that a name can have
MAX_NAME = 200
_AT = re.compile(r"(?<!\w)@(?=\S)")


def body_html(body: str, *, mentions: Sequence[str] = (), own: str = "") -> SafeString:
    """The body of a message as HTML. What follows the first FOLD_LINES lines is folded.

    `mentions` and `own` are as for `markup`. Of a body that is longer than MAX_SHOWN_LENGTH or
    MAX_SHOWN_BYTES, only the first lines are shown.
    """
    end = _fold_position(body)
    shown = markup(body[:end], mentions=mentions, own=own)
    if end == len(body) or is_cut(body):
        return shown
    marks_left = MAX_MARKS - shown.count("<a ") - shown.count("<code>")
    folded = markup(body[end:], max_marks=marks_left, mentions=mentions, own=own)
    return format_html(
        '{}<details class="drm-fold"><summary><span>{}</span><span>{}</span></summary>{}</details>',
        shown,
        pgettext("chat", "Show all"),
        _("Show less"),
        folded,
    )


def is_cut(body: str) -> bool:
    """Whether `body_html` contains only the beginning of the body."""
    return len(body) > MAX_SHOWN_LENGTH or len(escape(body, quote=False).encode()) > MAX_SHOWN_BYTES


def split(body: str) -> list[str]:
    """The body in parts of at most about MAX_SHOWN_LENGTH characters.

    No part ends inside a link, or inside code that is shorter than a part.

    >>> [len(part) for part in split("x" * 50_000)]
    [20000, 20000, 10000]
    """
    ends = [0]
    while ends[-1] < len(body):
        ends.append(_outside_tokens(body, ends[-1], min(ends[-1] + MAX_SHOWN_LENGTH, len(body))))
    return [body[start:end] for start, end in pairwise(ends)]


def _fold_position(body: str) -> int:
    """The number of characters in the first FOLD_LINES lines, and of code that they begin."""
    end, lines = 0, FOLD_LINES
    for line in body[: FOLD_LINES * MAX_ADDRESS_LENGTH].splitlines(keepends=True):
        needed = max(1, -(-len(line.rstrip()) // LINE_LENGTH))
        if needed > lines:
            if not lines:
                break
            limit = end + lines * LINE_LENGTH
            # After the last space, else anywhere but inside a link.
            end = body.rfind(" ", end, limit) + 1 or limit
            break
        end, lines = end + len(line), lines - needed
    return _outside_tokens(body, 0, end)


def _outside_tokens(body: str, start: int, position: int) -> int:
    """`position`, or the end of the link or the code that contains it. Code longer than a part is split."""
    for match in _TOKEN.finditer(body, start):
        if match.start() >= position:
            break
        if position < match.end() <= start + 2 * MAX_SHOWN_LENGTH and (
            match["address"] is None or _is_link(match[0])
        ):
            return match.end()
    return position


def markup(
    text: str, *, max_marks: int = MAX_MARKS, mentions: Sequence[str] = (), own: str = ""
) -> SafeString:
    """Escape the text, and mark up its mentions and the first `max_marks` web addresses and pieces of code.

    `mentions` are names: each is highlighted once, where it follows an @. `own` is the one of them that means
    the reader.

    >>> markup("<b> see `x < y`, @Ann", mentions=["Ann"])
    '&lt;b&gt; see <code>x &lt; y</code>, <span class="drm-mention">@Ann</span>'
    >>> markup("@ANN", mentions=["Ann"], own="Ann")
    '<mark class="drm-mention">@ANN</mark>'
    >>> markup("www.a.example.")[:32]
    '<a href="https://www.a.example" '
    """
    mark = _Marker(mentions, own) if mentions else _escape
    # All parts are escaped.
    return mark_safe("".join(mark(plain) + shown for plain, shown in _pieces(text, max_marks)))  # noqa: S308


def plain_texts(text: str) -> list[str]:
    """What `markup` shows as plain text: not code and web addresses.

    >>> plain_texts("a `b` c")
    ['a ', ' c']
    """
    return [plain for plain, _ in _pieces(text, MAX_MARKS)]


def _pieces(text: str, max_marks: int) -> Iterator[tuple[str, str]]:
    """Plain texts, each with the HTML of the token that follows it."""
    end = marks = 0
    for match in _TOKEN.finditer(text):
        if marks == max_marks:
            break
        shown, length = _token(match)
        if length:
            yield text[end : match.start()], shown
            end = match.start() + length
            marks += 1
    yield text[end:], ""


def _token(match: re.Match[str]) -> tuple[str, int]:
    """The HTML of a token, and how many of its characters that is: 0 if it is plain text."""
    if match["block"] is not None:
        return f"<pre><code>{escape(match['block'], quote=False)}</code></pre>", len(match[0])
    if match["code"] is not None:
        return f"<code>{escape(match['code'], quote=False)}</code>", len(match[0])
    address = _without_trailing(match[0])
    target = without_bidi_controls(address)
    return (_link(target), len(address)) if _is_link(target) else ("", 0)


def _without_trailing(address: str) -> str:
    """The address without the punctuation that ends the sentence around it.

    >>> _without_trailing("https://a.example/b_(c)."), _without_trailing("https://a.example/b).")
    ('https://a.example/b_(c)', 'https://a.example/b')
    """
    # How many more closing brackets there are than opening ones: counted once, or many would take long.
    surplus = {closing: address.count(closing) - address.count(_BRACKETS[closing]) for closing in _BRACKETS}
    end = len(address)
    while end and (last := address[end - 1]) in _TRAILING:
        if last in surplus:
            if surplus[last] <= 0:
                break
            surplus[last] -= 1
        end -= 1
    return address[:end]


def _escape(text: str) -> str:
    return escape(text, quote=False)


def _is_link(address: str) -> bool:
    return len(address) <= MAX_ADDRESS_LENGTH and not address.endswith("//")


def _link(address: str) -> str:
    # An address has no quotes: see _TOKEN. `dir` isolates it from controls in the text around it.
    shown = escape(address, quote=False)
    target = shown if shown.startswith("http") else f"https://{shown}"
    return f'<a href="{target}" dir="ltr" rel="noopener noreferrer nofollow ugc" target="_blank">{shown}</a>'


class _Marker:
    """Escapes texts, and marks up the first mention of each member in them."""

    def __init__(self, mentions: Sequence[str], own: str) -> None:
        self._names, self._own = NameSearch(mentions), fold(own)
        #: name → how many of those mentioned have it
        self._left = Counter(map(fold, mentions))

    def __call__(self, text: str) -> str:
        parts, end = [], 0
        for place in self._names.find(text):
            if self._left[place.name]:
                self._left[place.name] -= 1
                element = "mark" if place.name == self._own else "span"
                shown = _escape(text[place.start : place.end])
                parts += [
                    _escape(text[end : place.start]),
                    f'<{element} class="drm-mention">{shown}</{element}>',
                ]
                end = place.end
        return "".join([*parts, _escape(text[end:])])


class Place(NamedTuple):
    """Where a text has an @ and a name."""

    start: int
    end: int
    name: str
    """Folded, as names are compared."""


class NameSearch:
    """The search for names in the texts of a message, compared as in searches.

    >>> [place.name for place in NameSearch(["Bob", "Bob Straße"]).find("@BOB, @bob strasse, @Bobby")]
    ['bob', 'bob strasse']
    """

    def __init__(self, labels: Iterable[str]) -> None:
        #: "Ann" must not be found in "@Ann Lee" if that is a name, too
        self._longest_first = sorted({*map(fold, labels)} - {""}, key=len, reverse=True)
        self._places_left = MAX_PLACES

    def find(self, text: str) -> Iterator[Place]:
        """The places with one of the names as a whole word, which don't overlap."""
        end = 0
        for match in islice(_AT.finditer(text), self._places_left):
            self._places_left -= 1
            rest = text[match.end() : match.end() + MAX_NAME]
            name = self._beginning(fold(rest)) if match.start() >= end else ""
            if name:
                end = match.end() + _length(rest, name)
                yield Place(match.start(), end, name)

    def _beginning(self, rest: str) -> str:
        """The longest name with which a folded text begins, or ""."""
        return next((name for name in self._longest_first if _begins_with(rest, name)), "")


def has_place(text: str) -> bool:
    """Whether a name can follow an @ anywhere."""
    return _AT.search(text) is not None


def _begins_with(rest: str, name: str) -> bool:
    return rest.startswith(name) and not re.match(r"\w", rest[len(name) :])


def _length(rest: str, name: str) -> int:
    """How many characters of `rest` are the name: folding changes their number."""
    return bisect_right(range(len(rest) + 1), len(name), key=lambda end: len(fold(rest[:end]))) - 1


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
    return without_bidi_controls(text) if is_visible(text) else ""


def is_visible(text: str) -> bool:
    """Whether anything of the text can be seen: not if it is made of spaces, marks, and characters that are
    displayed as nothing.

    >>> is_visible("a\u200b"), is_visible("\u200b \u2800\u3164")
    (True, False)
    """
    return any(category(each) not in _BLANK_CATEGORIES for each in _BLANKS.sub("", text))


def unlinked(text: str, length: int) -> str:
    """A user's text for a mail, where it is quoted: one line of at most `length` characters, without
    invisible ones, and without anything that a mail program shows as a link.

    >>> unlinked('Pay at\\nhttps://evil.example/x or evil.example: "now"', 60)
    "Pay at [link] or evil. example: 'now'"
    """
    shown = [each for each in text if each.isspace() or each in _JOINERS or category(each) not in _INVISIBLE]
    line = " ".join("".join(shown).split())[: 4 * length]  # more may only be a link
    line = _MAIL_LINK.sub(lambda match: _("[link]"), line)
    return Truncator(_INNER_DOT.sub(r"\g<0> ", line).translate(_QUOTATION_MARKS)).chars(length)
