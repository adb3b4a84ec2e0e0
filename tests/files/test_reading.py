"""Lines and decompression: pure functions on blocks of bytes, which need no server."""

from __future__ import annotations

import gzip
import itertools
import random
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import Settings

from django_redis_messaging import ConfigurationError, FileCorrupt, InvalidArgument, LimitExceeded
from django_redis_messaging.services.files.reading import (
    LINES_SLICE_BYTES,
    PIECE_BYTES,
    Batcher,
    Decompressor,
    LineSplitter,
    decompressor,
    detect_encoding,
    gunzip,
    iter_lines,
    unzstd,
)

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
zstd = import_module(ZSTD)
MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def own_prefix() -> None:
    """Replace the fixture that needs a server; so each test runs in one world only."""


#: content with many line endings, also halves of them
contents = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"bc", b"\xff\x00", b"long" * 50]),
).map(b"".join)
#: text of one to four bytes a character in UTF-8, with the characters at which str.splitlines() splits
texts = st.text(st.sampled_from("\n\r\x0b\x85\u2028\ufeffaé€🦜"))


def cut(content: bytes, places: list[int]) -> list[bytes]:
    """Cut content into blocks at these places. Two equal places make an empty block."""
    ends = [0, *sorted(place % (len(content) + 1) for place in places), len(content)]
    return [content[start:end] for start, end in itertools.pairwise(ends)]


places = st.lists(st.integers(0, 1000), max_size=8)


def chunks(content: bytes, size: int) -> list[bytes]:
    return [content[start : start + size] for start in range(0, len(content), size)]


def expected_lines(content: bytes) -> list[bytes]:
    *lines, last = content.split(b"\n")
    return [line.removesuffix(b"\r") for line in lines] + ([last] if last else [])


def read(source: Iterator[Any]) -> tuple[list[Any], Exception | None]:
    """The items of an iterator, and the error that ended it."""
    items = []
    try:
        for item in source:
            items.append(item)
    except Exception as error:
        return items, error
    return items, None


class TestLines:
    @given(contents, places)
    def test_any_content_in_any_blocks(self, content: bytes, places: list[int]) -> None:
        assert list(iter_lines(cut(content, places), max_bytes=100_000)) == expected_lines(content)

    @given(contents, places, st.integers(1, 4))
    def test_limit_does_not_depend_on_the_blocks(self, content: bytes, places: list[int], limit: int) -> None:
        lines, error = read(iter_lines(cut(content, places), max_bytes=limit))
        allowed = list(itertools.takewhile(lambda line: len(line) <= limit, expected_lines(content)))
        assert lines == allowed
        assert isinstance(error, LimitExceeded) == (len(allowed) < len(expected_lines(content)))

    @given(st.lists(st.integers(0, 200), min_size=1), st.sampled_from([b"\n", b"\r\n"]))
    def test_more_content_than_a_slice(self, sizes: list[int], ending: bytes) -> None:
        some = b"".join(b"x" * size + ending for size in sizes)
        content = some * (3 * LINES_SLICE_BYTES // len(some)) + b"y" * LINES_SLICE_BYTES + ending + some
        assert list(iter_lines([content])) == expected_lines(content)

    @given(texts, places)
    def test_any_text_in_any_blocks(self, text: str, places: list[int]) -> None:
        content = text.encode()
        lines = [line.decode() for line in expected_lines(content)]
        assert list(iter_lines(cut(content, places), encoding="utf-8")) == lines
        assert list(iter_lines(cut(b"\xef\xbb\xbf" + content, places), encoding="utf-8-sig")) == lines

    def test_lines_can_be_read_after_further_blocks(self) -> None:
        splitter = LineSplitter()
        fed = [splitter.feed(b"one\ntwo\nth"), splitter.feed(b"ree\nfour"), splitter.finish()]
        assert [list(lines) for lines in fed] == [[b"one", b"two"], [b"three"], [b"four"]]

    def test_long_line_is_refused_before_the_rest_is_read(self) -> None:
        blocks = iter(chunks(b"first\n" + b"x" * 10_000_000 + b"\nlast\n", MIB // 4))
        lines, error = read(iter_lines(blocks))
        assert lines == [b"first"]
        assert isinstance(error, LimitExceeded)
        assert (error.limit, error.setting) == (MIB, "FILES_MAX_LINE_BYTES")
        assert MIB < error.actual <= MIB + MIB // 4
        assert len(list(blocks)) == 34, "five of 39 blocks were read"

    def test_limit_can_be_changed(self, settings: Settings) -> None:
        line = b"x" * 10_000_000
        for size in (1000, MIB, 20_000_000):
            assert list(iter_lines(chunks(line + b"\r\n" + line, size), max_bytes=len(line))) == [line, line]
        settings.REDIS_MESSAGING = {"FILES_MAX_LINE_BYTES": 3}
        assert list(iter_lines([b"one\r", b"\ntwo"])) == [b"one", b"two"]
        with pytest.raises(LimitExceeded, match="4 is over the limit of 3"):
            list(iter_lines([b"four\n"]))

    def test_invalid_text(self) -> None:
        lines, error = read(iter_lines([b"one\ntwo\nthr\xff\nfour"], encoding="utf-8"))
        assert lines == ["one", "two"]
        assert isinstance(error, UnicodeDecodeError)
        assert error.object == b"thr\xff"

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "shift_jis", "gb18030", "utf8"])
    def test_encodings(self, encoding: str) -> None:
        assert list(iter_lines([b"one\r", b"\ntwo"], encoding=encoding)) == ["one", "two"]

    @pytest.mark.parametrize("encoding", [
        "utf-16", "utf-16-le", "utf-32", "cp037", "unknown", "", "rot13", "hex", "a\0b", "\ud800",
    ])  # fmt: skip
    def test_refused_encodings(self, encoding: str) -> None:
        blocks = iter([b"one\n"])
        with pytest.raises(InvalidArgument, match="encoding must"):
            iter_lines(blocks, encoding=encoding)
        assert next(blocks) == b"one\n"

    def test_arguments_of_other_types(self) -> None:
        for blocks in (b"one\n", ["one\n"], [bytearray(b"one\n")]):
            with pytest.raises(TypeError, match="must be an iterable of bytes, not of "):
                list(iter_lines(blocks))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="encoding must be a str"):
            iter_lines([], encoding=8)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="max_bytes must be an int"):
            iter_lines([], max_bytes=1.5)  # type: ignore[call-overload]
        with pytest.raises(InvalidArgument, match="max_bytes must be between"):
            iter_lines([], max_bytes=0)


class TestBatches:
    @given(st.lists(st.lists(st.integers())), st.integers(1, 5))
    def test_any_items(self, parts: list[list[int]], n: int) -> None:
        items, batcher = [item for part in parts for item in part], Batcher[int](n)
        batches = [batch for part in parts for batch in batcher.feed(part)] + list(batcher.finish())
        assert batches == [items[start : start + n] for start in range(0, len(items), n)]
        assert list(batcher.finish()) == []

    def test_size_is_limited(self) -> None:
        for n in (0, -1, 10_000_000):
            with pytest.raises(InvalidArgument, match="n must be between 1 and 1000000"):
                Batcher(n)


class Format(NamedTuple):
    name: str
    compress: Callable[[bytes], bytes]
    read: Callable[..., Iterator[bytes]]


def zstd_frame(content: bytes) -> bytes:
    return bytes(zstd.compress(content, options={zstd.CompressionParameter.checksum_flag: 1}))


FORMATS = {"gzip": Format("gzip", gzip.compress, gunzip), "zstd": Format("zstd", zstd_frame, unzstd)}


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


class TestDecompression:
    @pytest.mark.versions
    @given(st.lists(st.binary()), places)
    @pytest.mark.parametrize("name", FORMATS)
    def test_any_members_in_any_blocks(self, name: str, parts: list[bytes], places: list[int]) -> None:
        form = FORMATS[name]
        file = b"".join(map(form.compress, parts))
        assert b"".join(form.read(cut(file, places))) == b"".join(parts)

    @pytest.mark.parametrize("block", [1000, MIB])
    def test_sizes_around_that_of_a_piece(self, form: Format, block: int) -> None:
        for size in (0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB):
            for content in (bytes(size), random.Random(size).randbytes(size)):
                pieces = list(form.read(chunks(form.compress(content) * 2, block), max_ratio=10_000_000))
                assert b"".join(pieces) == content * 2
                assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)

    @pytest.mark.versions
    def test_truncated_anywhere(self, form: Format) -> None:
        first, second = form.compress(b"one\n" * 30), form.compress(b"two\n" * 30)
        file = first + second
        complete = {0: b"", len(first): b"one\n" * 30, len(file): b"one\n" * 30 + b"two\n" * 30}
        for size in range(len(file) + 1):
            pieces, error = read(form.read([file[:size]]))
            if size in complete:
                assert (b"".join(pieces), error) == (complete[size], None)
            else:
                assert isinstance(error, FileCorrupt), size
                assert str(error) == f"The {form.name} data ends before its end marker: it is truncated."

    def test_each_changed_bit_is_found_or_harmless(self, form: Format) -> None:
        content = b"".join(b"line %d\n" % number for number in range(30))
        file, found = form.compress(content), 0
        for place, bit in itertools.product(range(len(file)), range(8)):
            damaged = bytearray(file)
            damaged[place] ^= 1 << bit
            pieces, error = read(form.read(chunks(bytes(damaged), 50)))
            found += isinstance(error, FileCorrupt)
            assert isinstance(error, FileCorrupt) or (error is None and b"".join(pieces) == content), place
        # only a gzip header has bytes without effect: time, flags, operating system
        assert found >= 8 * (len(file) - 10)

    @pytest.mark.parametrize("block", [1, 1000])
    def test_other_data_after_the_end(self, form: Format, block: int) -> None:
        for garbage in (b"garbage", b"\0\0garbage", b"\x1f"):
            pieces, error = read(form.read(chunks(form.compress(b"one\n") + garbage, block)))
            assert b"".join(pieces) == b"one\n"
            assert isinstance(error, FileCorrupt)

    @pytest.mark.parametrize("block", [1, 1000, MIB])
    def test_zeros_after_a_gzip_member(self, block: int) -> None:
        member = gzip.compress(b"one\n")
        assert b"".join(gunzip(chunks(member + bytes(100_000), block))) == b"one\n"
        assert b"".join(gunzip(chunks(member + bytes(10) + member, block))) == b"one\none\n"

    def test_zeros_elsewhere_are_damage(self) -> None:
        for reading in (gunzip([bytes(10)]), unzstd([bytes(10)]), unzstd([zstd_frame(b"one\n"), bytes(10)])):
            assert isinstance(read(reading)[1], FileCorrupt)

    def test_other_formats_are_damage(self, form: Format) -> None:
        with pytest.raises(FileCorrupt, match=rf"The {form.name} data is damaged within its first 6 bytes: "):
            list(form.read([b"GET /\n"]))
        for data in (zlib.compress(b"one\n"), zlib.compress(b"one\n", wbits=-15)):
            with pytest.raises(FileCorrupt, match="incorrect header check"):
                list(gunzip([data]))

    @pytest.mark.timing
    def test_time_for_small_members_does_not_depend_on_the_block(self) -> None:
        members, times = 100_000, []
        file = gzip.compress(b"x") * members
        for size in (10_000, len(file)):
            start = time.process_time()
            assert b"".join(gunzip(chunks(file, size))) == b"x" * members
            times.append(time.process_time() - start)
        # it would be 15 times as long if each member copied the rest of the block
        assert times[1] < 5 * times[0]

    def test_skippable_frames(self) -> None:
        skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
        assert b"".join(unzstd(chunks(skippable + zstd_frame(b"one\n") + skippable, 5))) == b"one\n"

    def test_ratio_limit(self, form: Format) -> None:
        file = form.compress(bytes(40 * MIB))
        pieces, error = read(form.read([file]))
        assert isinstance(error, LimitExceeded)
        assert (error.limit, error.setting) == (200, "FILES_MAX_RATIO")
        assert error.actual > 200
        assert sum(map(len, pieces)) <= max(200 * len(file), MIB)
        assert b"".join(form.read([file], max_ratio=100_000)) == bytes(40 * MIB)
        assert b"".join(form.read([form.compress(bytes(MIB))], max_ratio=1)) == bytes(MIB), "it is small"

    def test_bomb_after_harmless_data(self, form: Format) -> None:
        file = form.compress(random.Random(0).randbytes(MIB)) + form.compress(bytes(MIB)) * 400
        pieces, error = read(form.read(chunks(file, MIB)))
        assert isinstance(error, LimitExceeded)
        assert sum(map(len, pieces)) <= 200 * len(file)

    def test_output_limit(self, form: Format) -> None:
        content = random.Random(0).randbytes(3 * MIB)
        file = chunks(form.compress(content), MIB)
        assert b"".join(form.read(file, max_output=3 * MIB)) == content
        pieces, error = read(form.read(file, max_output=3 * MIB - 1))
        assert isinstance(error, LimitExceeded)
        assert (error.limit, error.setting) == (3 * MIB - 1, "FILES_MAX_OUTPUT_BYTES")
        assert 2 * MIB - 1 <= sum(map(len, pieces)) < 3 * MIB
        assert content.startswith(b"".join(pieces))

    def test_limits_are_settings(self, settings: Settings, form: Format) -> None:
        settings.REDIS_MESSAGING = {"FILES_MAX_RATIO": 2}
        with pytest.raises(LimitExceeded, match="FILES_MAX_RATIO"):
            list(form.read([form.compress(bytes(2 * MIB))]))
        settings.REDIS_MESSAGING = {"FILES_MAX_OUTPUT_BYTES": 3}
        with pytest.raises(LimitExceeded, match="4 is over the limit of 3"):
            list(form.read([form.compress(b"four")]))

    def test_memory_does_not_depend_on_the_output(self, form: Format) -> None:
        file = form.compress(bytes(100 * MIB))
        tracemalloc.start()
        try:
            size = sum(map(len, form.read([file], max_ratio=1_000_000)))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert size == 100 * MIB
        assert peak < 8 * MIB

    def test_arguments_of_other_types(self, form: Format) -> None:
        with pytest.raises(TypeError, match="must be an iterable of bytes, not of int"):
            list(form.read(form.compress(b"one\n")))
        with pytest.raises(TypeError, match="max_ratio must be an int"):
            form.read([], max_ratio=1.5)
        with pytest.raises(InvalidArgument, match="max_output must be between"):
            form.read([], max_output=0)

    def test_other_encodings(self) -> None:
        reader: Decompressor = decompressor("")
        assert [list(reader.feed(block)) for block in (b"one", b"", b"two")] == [[b"one"], [b""], [b"two"]]
        reader.finish()
        with pytest.raises(InvalidArgument, match="encoding must be '', 'gzip' or 'zstd', not 'lzma'"):
            decompressor("lzma")

    @pytest.mark.versions
    def test_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(import_module(ZSTD.partition(".")[0]), "zstd")
        monkeypatch.setitem(sys.modules, ZSTD, None)
        with pytest.raises(ConfigurationError, match=r"pip install 'django-redis-messaging\[zstd\]'"):
            unzstd([])
        assert list(gunzip([])) == []


@pytest.mark.parametrize(("name", "head", "encoding"), [
    ("access.log", b"", ""), ("access.log", b"GET /", ""), ("gz", b"GET /", ""),
    ("access.log.gz", b"", "gzip"), ("ACCESS.LOG.GZ", b"GET /", "gzip"), ("access.log.zst", b"", "zstd"),
    ("access.log.1", gzip.compress(b"one\n", mtime=0)[:4], "gzip"),
    ("access.log.1", zstd_frame(b"one\n")[:4], "zstd"),
    ("access.log.1", b"\x50\x2a\x4d\x18", "zstd"), ("access.log.1", b"\x60\x2a\x4d\x18", ""),
    ("access.log.gz", zstd_frame(b"one\n"), "zstd"),
    ("access.log.zst", gzip.compress(b"one\n", mtime=0), "gzip"),
])  # fmt: skip
def test_detection(name: str, head: bytes, encoding: str) -> None:
    assert detect_encoding(name, head) == encoding
