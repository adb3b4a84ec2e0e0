"""Chinese labels match by pinyin and initials; results equal those of a brute-force search."""

import itertools
import subprocess
import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pypinyin.constants import PINYIN_DICT
from pytest_django import Settings

from django_redis_messaging import RecentContacts, conf
from django_redis_messaging.errors import LimitExceeded
from django_redis_messaging.services.directories.directory import Contact, Directory, DirectoryKeys
from django_redis_messaging.services.directories.folding import all_suffixes

from ..support.missing_packages import without_pypinyin
from ..support.server import change, get_redis_connection
from .test_directory import changes, compare_with_brute_force, fold, found, word_starts


def readings(character: str) -> list[str]:
    """The readings of a character, from the data with tones."""
    with_tones = unicodedata.normalize("NFD", PINYIN_DICT.get(ord(character), "")).split(",")
    without = {
        "".join(c for c in text if c.isascii() or c == "\u0308")
        for text in with_tones
        if text and "\u0302" not in text  # "ê"
    }
    return sorted({text.replace("u\u0308", u) for text in without for u in ("v", "yu", "u")})


def spell(text: str) -> list[str]:
    """All spellings of a text."""
    known = {at: read for at, character in enumerate(text) if (read := readings(character))}
    spelled = []
    for start in {*known, *word_starts(text)}:
        places = [at for at in known if at >= start]
        for choice in itertools.product(*(known[at] for at in places)) if places else ():
            chosen = dict(zip(places, choice, strict=True))
            forms = [chosen]
            if len(places) > 1:
                forms.append({at: reading[0] for at, reading in chosen.items()})
            if {start, start + 1} <= {*known} and start - 1 not in known:
                forms.append({**chosen, start: chosen[start] + " "})
            spelled += ["".join(form.get(at, text[at]) for at in range(start, len(text))) for form in forms]
    return spelled


def is_spelled_in_full(text: str) -> bool:
    """Whether a text has so few spellings that none is left out."""
    combinations = itertools.product(*(read for character in text if (read := readings(character))))
    return len(list(combinations)) <= 12 and len(set(spell(text))) <= 60


PIECES = [*"王小明重庆单吕曾陈欸", "A", "b", " ", "-", "\u3000", "𠮷", "あ", "\uf9dc", "\u3007"]
names = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join)
short_names = names.filter(lambda text: is_spelled_in_full(fold(text)))


@given(short_names)
@settings(max_examples=200, deadline=None)
def test_labels_have_all_spellings(label: str) -> None:
    folded = fold(label)
    assert {*all_suffixes([label])} == {*(folded[at:] for at in word_starts(folded)), *spell(folded)}


@given(changes(short_names), st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_equal_to_brute_force(steps: list[Any], data: st.DataObject) -> None:
    compare_with_brute_force(steps, data, short_names, spell)


@pytest.mark.parametrize(
    ("label", "prefixes"),
    [
        ("王小明", "wang WANG wangxiaoming wang_xiao wang_xiaoming xiaoming ming wxm wx xm 王 王小"),
        ("重庆", "chongqing zhongqing chong_qing cq zq qing"),
        ("单", "shan dan"),
        ("曾国", "zeng ceng zg cg cengguo guo"),
        ("吕绿", "lv lu lyu lvlv lyulu ll"),
        ("王Bob 明", "wangbob_ming wbob_m ming 明"),
        ("Ann 王", "ann_wang wang ann_王"),
        ("研发部-王明", "yanfabu-wang wangming wm wang_ming"),
    ],
)
def test_chinese_labels_match_by_pinyin_and_initials(label: str, prefixes: str) -> None:
    recent = RecentContacts("ann")
    recent.touch(label)
    Directory("staff").add("u1", label)
    for prefix in prefixes.replace("_", "\u3000").split(" "):
        assert Directory("staff").suggest(prefix) == [Contact("u1", label)], prefix
        assert recent.suggest(prefix) == [label], prefix


@pytest.mark.parametrize("prefix", ["xiao ming", "wang xiao ming", "wm", "angxiao", "wángxiaoming", "小明"])
def test_other_spellings_do_not_match(prefix: str) -> None:
    Directory("staff").add("u1", "王小明")
    assert found(Directory("staff"), prefix) == []


def test_without_pypinyin_only_the_label_matches() -> None:
    with without_pypinyin():
        Directory("staff").add("u1", "王小明")
        assert found(Directory("staff"), "wang") == []
        assert found(Directory("staff"), "王") == ["u1"]


def test_adding_the_same_label_again_adds_the_spellings() -> None:
    with without_pypinyin():
        Directory("staff").add("u1", "王小明")
    Directory("staff").add("u1", "王小明")
    assert found(Directory("staff"), "wxm") == ["u1"]


def entries(guild: str) -> int:
    count: int = get_redis_connection(conf.alias()).zcard(DirectoryKeys(conf.prefix(), guild).entries)
    return count


@pytest.mark.parametrize(
    ("label", "aliases", "most", "prefix"),
    [
        ("单" * 85, [], 65, "dandandan"),
        ("单" * 85, ["曾" * 85, "重" * 85], 128, "cc"),
        ("-" * 127 + "单", [], 128, "-"),
        ("重单曾重单曾" * 3, [], 65, "chongdan"),
        ("北京市朝阳区人力资源部 王小明", [], 66, "wangxiaoming"),
    ],
    ids=["long", "long aliases", "many words", "many readings", "names and words"],
)
def test_spellings_are_limited(label: str, aliases: list[str], most: int, prefix: str) -> None:
    staff = Directory("staff")
    staff.add("u1", label, aliases=aliases)
    assert entries("staff") == most
    assert found(staff, label) == found(staff, prefix) == ["u1"]


def test_spellings_that_are_too_long_are_left_out(settings: Settings) -> None:
    change(settings, LABEL_MAX_BYTES=60_000)
    staff = Directory("staff")
    staff.add("u1", "单" * 5_000)
    assert 1 < entries("staff") < 10
    staff.add("u1", "单" * 20_000)
    assert entries("staff") == 1
    with pytest.raises(LimitExceeded, match="word starts"):
        staff.add("u1", "-" * 128 + "单")


def test_the_folded_label_comes_first() -> None:
    assert all_suffixes(["王 Ⅳ", "A"])[:3] == ["王 iv", "iv", "a"]


def test_pypinyin_is_imported_for_the_first_chinese_character() -> None:
    code = """if True:
        import sys
        from django_redis_messaging.services.directories.folding import all_suffixes
        all_suffixes(["Ann Łee", "キム", "김"])
        assert "pypinyin" not in sys.modules
        all_suffixes(["王"])
        assert "pypinyin" in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)
