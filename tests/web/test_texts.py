"""Texts of users as HTML: links, escaping, bounds, folding and direction controls. No browser, no Redis."""

from __future__ import annotations

import re

import pytest

from django_redis_messaging.web.texts import (
    FOLD_LINES,
    MAX_MARKS,
    MAX_SHOWN_LENGTH,
    body_html,
    is_cut,
    is_visible,
    markup,
    split,
    unlinked,
    without_bidi_controls,
)

pytestmark = pytest.mark.versions

#: bytes: in the worst text, all characters are in links, which contain the address twice
MAX_BODY_BYTES = 140 * 1024
MAX_PART_BYTES = 220 * 1024
RLO, PDI = "\u202e", "\u2069"


def links(html: str) -> list[str]:
    return re.findall(r'<a href="([^"]*)"', html)


def text(html: str) -> str:
    """What a browser displays."""
    shown = re.sub(r"<summary>.*?</summary>|<[^>]*>", "", html)
    return shown.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


@pytest.mark.parametrize(
    "body",
    [
        "javascript:alert(1)",
        "javascript://example.com/%0aalert(1)",
        "JaVaScRiPt:alert(1)",
        "javascript:/*https*/alert(1)",
        "data:text/html,<script>alert(1)</script>",
        "DATA:text/html;base64,PHNjcmlwdD4=",
        "vbscript:msgbox(1)",
        "java\nscript:alert(1)",
        "\x01javascript:alert(1)",
        "file:///etc/passwd",
        "//example.com",
        "https://",
        "https://...",
        f"https://{RLO}",
        "https://" + "x" * 2_000,
    ],
)
def test_this_is_no_link(body: str) -> None:
    assert links(markup(body)) == []
    assert text(markup(body)) == body


@pytest.mark.parametrize(
    ("body", "address"),
    [
        ("javascript://%0ahttps://example.com/", "https://example.com/"),
        ('https://x.example/"onmouseover=alert(1)', "https://x.example/"),
        ("https://x.example/'><script>", "https://x.example/"),
        ("<b onmouseover=alert(1)> https://x.example <b onmouseover=alert(2)>", "https://x.example"),
        ("(https://x.example/?a=1&b=2).", "https://x.example/?a=1&amp;b=2"),
        ("https://x.example/a_(b).", "https://x.example/a_(b)"),
        ("(see https://x.example/a_(b)_[c]{d}).", "https://x.example/a_(b)_[c]{d}"),
        ("[(https://x.example/(a))]", "https://x.example/(a)"),
        (f"https://x.example/{RLO}gpj.exe{PDI}", "https://x.example/gpj.exe"),
        (f"{RLO}https://moc.elgoog\u200f/\u061c\u2066", "https://moc.elgoog/"),
    ],
)
def test_a_link_has_the_address_that_it_shows(body: str, address: str) -> None:
    html = markup(body)
    rel = 'dir="ltr" rel="noopener noreferrer nofollow ugc" target="_blank"'
    assert f'<a href="{address}" {rel}>{address}</a>' in html
    assert html.count("<a ") == html.count("</a>") == 1
    assert "<script" not in html and "<b" not in html


def test_text_is_escaped_only_where_it_must_be() -> None:
    assert markup("<b>'\"&") == "&lt;b&gt;'\"&amp;"


@pytest.mark.parametrize(
    "piece",
    [
        "&",
        "'",
        "<",
        "x",
        "\U0001f600",
        "&\n",
        "https://\U0001f600&&&& ",
        "https://x" + ")" * 13_000,
        "https://" + "&" * 1_900 + " ",
        "\n",
    ],
    ids=lambda piece: repr(piece[:12]),
)
def test_the_html_of_a_message_is_bounded(piece: str) -> None:
    for length in (13_000, MAX_SHOWN_LENGTH, MAX_SHOWN_LENGTH + 1, 65_536):
        body = (piece * length)[:length]
        html = body_html(body)
        assert len(html.encode()) <= MAX_BODY_BYTES
        assert html.count("<a ") <= MAX_MARKS
        assert text(html) == (body[: len(text(html))] if is_cut(body) else body)
        parts = split(body)
        assert "".join(parts) == body and len(parts) <= 4
        assert all(len(markup(part).encode()) <= MAX_PART_BYTES for part in parts)


def test_more_links_than_allowed_are_text() -> None:
    body = "\n".join(f"https://example.com/{number}" for number in range(MAX_MARKS + 10))
    html = body_html(body)
    assert links(html) == [f"https://example.com/{number}" for number in range(MAX_MARKS)]
    assert text(html) == body


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("a\n" * FOLD_LINES, None),
        ("a\n" * FOLD_LINES + "b", "a\n" * FOLD_LINES),
        ("\n" * 30, "\n" * FOLD_LINES),
        ("\u2028" * 30, "\u2028" * FOLD_LINES),
        ("x" * 80 * FOLD_LINES, None),
        ("x" * 1_601, "x" * 1_600),
        ("word " * 400, "word " * 320),
        ("a\n" * 19 + "word " * 40, "a\n" * 19 + "word " * 16),
        ("https://" + "x" * 1_900 + "/y z", "https://" + "x" * 1_900 + "/y"),
        ("<" * 30_000, "<" * 1_600),
    ],
)
def test_long_texts_are_folded(body: str, shown: str | None) -> None:
    before, fold, folded = body_html(body).partition("<details")
    if shown is None:
        assert (text(before), fold) == (body, "")
        return
    assert text(before) == shown
    assert text(fold + folded) == ("" if is_cut(body) else body[len(shown) :])


def test_parts_do_not_split_links() -> None:
    body = "x" * (MAX_SHOWN_LENGTH - 20) + " https://example.com/" + "y" * 100 + " z"
    first, second = split(body)
    assert links(markup(first)) == ["https://example.com/" + "y" * 100]
    assert second == " z"


@pytest.mark.parametrize(
    ("body", "visible"),
    [
        (f"{RLO}\u200b\u2060\ufeff\u00ad \u3000\n", False),
        ("\u2800\u3164\u115f\u1160\uffa0", False),
        ("\ufe0f\u034f\U000e0041\U000e0100\U0001d159", False),
        (f"{RLO}a", True),
        ("?", True),
        ("\u2764\ufe0f", True),
        ("\U0001fae8", True),  # an emoji that Python 3.11 doesn't know
        ("\uf8ff", True),
    ],
)
def test_what_is_visible(body: str, visible: bool) -> None:
    assert is_visible(body) is visible


def test_all_direction_controls_are_removed() -> None:
    controls = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
    assert without_bidi_controls("a" + "".join(map(chr, controls)) + "b") == "ab"


@pytest.mark.parametrize(
    ("body", "html"),
    [
        ("a `x < y` b", "a <code>x &lt; y</code> b"),
        ("`https://x.example/`", "<code>https://x.example/</code>"),
        ("no `end", "no `end"),
        ("`two\nlines`", "`two\nlines`"),
        ("``", "``"),
        ("see\n```py\nif a < b:\n  `c`\n```\nend", "see\n<pre><code>if a &lt; b:\n  `c`\n</code></pre>end"),
        ("```\nopen\nend", "```\nopen\nend"),
        ("```\n<script>\n```", "<pre><code>&lt;script&gt;\n</code></pre>"),
        ("not ``` at\nthe start ```", "not ``` at\nthe start ```"),
    ],
)
def test_code(body: str, html: str) -> None:
    assert markup(body) == html


@pytest.mark.parametrize(
    ("body", "target"),
    [("www.example.com/a.", "https://www.example.com/a"), ("(WWW.example.com)", None), ("awww.no.no", None)],
)
def test_addresses_without_a_scheme(body: str, target: str | None) -> None:
    assert links(markup(body)) == ([target] if target else [])
    assert text(markup(body)) == body


def test_mentions_of_known_names_are_highlighted() -> None:
    html = markup(
        "@Ann <b> and @ann lee, x@Ann `@Ann` @Anna https://x.example/@Ann", mentions=["Ann", "Ann Lee"]
    )
    assert re.findall(r'<span class="drm-mention">(.*?)</span>', html) == ["@Ann", "@ann lee"]
    assert text(html).startswith("@Ann <b> and")
    assert markup("@<b>", mentions=["<b>"]) == '<span class="drm-mention">@&lt;b&gt;</span>'


@pytest.mark.parametrize("piece", ["`a`", "```\na\n```\n", "```j\n", "`", "@Ann ", "www.a.b ", "```"])
def test_marked_texts_are_bounded(piece: str) -> None:
    """And take linear time: a part is searched once."""
    body = (piece * 65_536)[:65_536]
    assert len(body_html(body, mentions=["Ann"]).encode()) <= MAX_BODY_BYTES
    for part in split(body):
        assert len(markup(part, mentions=["Ann"]).encode()) <= MAX_PART_BYTES
    assert "".join(split(body)) == body


def test_code_is_neither_folded_nor_split_in_the_middle() -> None:
    code = "```\n" + "line\n" * 30 + "```\n"
    shown, _, folded = body_html(code + "end").partition("<details")
    assert shown == "<pre><code>" + "line\n" * 30 + "</code></pre>"
    assert folded.endswith("end</details>")
    long = "x" * (MAX_SHOWN_LENGTH - 10) + "\n" + code + "end"
    assert split(long) == ["x" * (MAX_SHOWN_LENGTH - 10) + "\n" + code, "end"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("See https://evil.example/a?b=c, now", "See [link], now"),
        ("HTTP:/evil.example ftp://evil x-y.z+1://evil", "[link] [link] [link]"),
        ("(www.evil.example/a)", "([link])"),
        ("mailto:a@evil.example tel:+49123 sms:1", "[link] [link] [link]"),
        (r"\\evil\share", "[link]"),
        ("10.0.0.1 and 10.0.0.1:80/login.", "[link] and [link]."),
        ("evil.example/login", "evil. example/login"),
        ("ann@evil.example", "ann@evil. example"),
        ("evil\u200b.\u00adexample, evil.\u200dexample", "evil. example, evil. \u200dexample"),
        ("163.com 1and1.de www2.évil.fr", "163. com 1and1. de www2. évil. fr"),
        ("evil\u3002com evil\uff0ecom", "evil\u3002 com evil\uff0e com"),
        ("1.5 million, 3.14; wait... what? Yes. No", "1.5 million, 3.14; wait... what? Yes. No"),
        ("你好。再见", "你好。再见"),
        ("a\r\nb\x00\x1b[31m\u2028c\td", "a b[31m c d"),
        (f"{RLO}gpj{PDI}", "gpj"),
        ("\U0001f468\u200d\U0001f469", "\U0001f468\u200d\U0001f469"),
        ('"“”„«»「」', "'" * 8),
        ("<b>&amp;", "<b>&amp;"),
        ("x" * 41, "x" * 39 + "…"),
    ],
)
def test_texts_in_mails_have_no_links(written: str, shown: str) -> None:
    assert unlinked(written, 40) == shown


def test_unlinking_long_texts_is_fast() -> None:
    for text in ("a." * 5_000, "a+" * 5_000, "1." * 5_000, "\\" * 10_000, ":/" * 5_000):
        assert len(unlinked(text, 100)) <= 100
