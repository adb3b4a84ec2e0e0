"""Directories and recent contacts: who is suggested, in which order, and what a change does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from django_redis_messaging import Contact, Directory, InvalidArgument, RecentContacts, conf
from django_redis_messaging.services.directories.folding import all_suffixes

from ..conftest import Call
from ..support.directories import contact_keys, found, keys_of, touched, uses_of
from ..support.missing_packages import without_pypinyin
from ..support.server import reply_to, server, steps
from .test_machine import brute_force


def round_trips(operation: Any, *arguments: Any) -> int:
    body, count = steps(operation, *arguments), 0
    step = next(body)
    while True:
        count += 1
        try:
            step = body.send(reply_to(step))
        except StopIteration:
            return count


class TestSuggestions:
    def test_results_from_each_word_start_are_sorted_by_the_matched_rest(self) -> None:
        staff = Directory("staff")
        staff.add("u1", "John Smith Jones")
        staff.add("u2", "smithers", aliases=["w.smith@example.org"])
        staff.add("u3", "Zoe Smith")
        assert found(staff, "smith j") == ["u1"]
        assert found(staff, "SMITH") == ["u3", "u1", "u2"]
        assert found(staff, "smith ") == ["u1"]
        assert found(staff, "ex") == ["u2"]
        assert found(staff, "mith") == []
        assert staff.suggest("jo", limit=1) == [Contact("u1", "John Smith Jones")]

    @pytest.mark.parametrize(
        ("label", "prefix", "matches"),
        [
            ("\U0001d49cnn", "an", True),
            ("ann", "\uff21NN", True),
            ("Straße", "STRASS", True),
            ("GROSS", "groß", True),
            ("İbo", "i\u0307b", True),
            ("ﬁnn", "FI", True),
            ("e\u0301a", "\xc9", True),
            ("ΟΔΟΣ", "οδος", True),
            ("a\u3000B", "b", True),
            ("x\uff20y", "Y", True),
            ("ﷺ" * 20, "ﷺ" * 20, True),  # grows when it is folded
            ("ﷺ" * 20, "ﷺ" * 21, False),
            # a part of a code point
            ("Élodie", "e", False),
            ("ǰan", "j", False),
            ("ΐ", "\u03b9", False),
            ("한", "하", False),
        ],
    )
    def test_texts_that_fold_alike_match(self, label: str, prefix: str, matches: bool) -> None:
        Directory("staff").add("u1", label)
        assert Directory("staff").suggest(prefix) == ([Contact("u1", label)] if matches else [])

    def test_equal_labels_are_sorted_by_id(self) -> None:
        staff = Directory("staff")
        staff.add_many((member, "Ann Lee") for member in ["b", "a", "a0", "é", "😀", "B"])
        assert found(staff, "lee") == ["B", "a", "a0", "b", "é", "😀"]

    def test_long_labels_with_a_common_prefix_are_sorted(self) -> None:
        staff = Directory("staff")
        head = "x" * 250
        staff.add_many([("u1", head + "c"), ("u2", head + "a"), ("u3", head + "b")])
        assert found(staff, "x") == ["u2", "u3", "u1"]
        assert found(staff, head + "B") == ["u3"]
        assert found(staff, head + "bb") == []

    def test_guilds_are_separate(self) -> None:
        Directory("a").add("u1", "Ann")
        Directory("a:b{").add("u2", "Ann")
        assert found(Directory("a"), "a") == ["u1"]
        assert found(Directory("a:b{"), "a") == ["u2"]


class TestManyResults:
    def test_members_with_many_matching_words_hide_no_others(self) -> None:
        crowd = Directory("crowd")
        held = {"u3": ["ac"], "u4": ["ad"]}
        for member, head in (("u1", "aa"), ("u2", "ab")):
            held[member] = [head, *(" ".join([head] * 49) + f" {head}{number}" for number in range(2))]
        for member, (label, *aliases) in held.items():
            crowd.add(member, label, aliases=aliases)
        for limit in (1, 2, 3, 4, 1000):
            assert crowd.suggest("a", limit) == brute_force(held, "a", limit)

    def test_members_whose_every_character_starts_a_word_cost_one_more_round_trip(self) -> None:
        crowd = Directory("crowd")
        crowd.add("z", "-zed")
        for limit in (10, 16):
            crowd.add_many((f"u{number}", "-" * 128) for number in range(limit - 1))
            assert found(crowd, "-", limit)[-1] == "z"
            assert round_trips(crowd.suggest, "-", limit) == 2
            assert round_trips(crowd.suggest, "-", limit - 1) == 1

    @pytest.mark.parametrize(
        ("members", "trips"),
        [
            # more entries than one call of the script reads
            ({f"u{number}": ["-" * 100 + f"{number:02}"] for number in range(45)}, 4),
            # more bytes than one call of the script reads, in fewer entries
            ({f"u{number}".ljust(255): ["-" * 40 + "㌖" * 70 + f"{number:02}"] for number in range(40)}, 3),
        ],
        ids=["entries", "bytes"],
    )
    def test_ranges_of_any_length_are_read_in_full(self, members: dict[str, list[str]], trips: int) -> None:
        crowd = Directory("crowd")
        crowd.add_many((member, label) for member, (label,) in members.items())
        limit = len(members) + 1
        assert crowd.suggest("", limit) == brute_force(members, "", limit)
        assert round_trips(crowd.suggest, "", limit) == trips

    def test_thousand_results(self) -> None:
        crowd = Directory("crowd")
        held = {f"u{number}": [f"a{number % 7} a"] for number in range(1100)}
        crowd.add_many((member, label) for member, (label,) in held.items())
        assert crowd.suggest("a", 1000) == brute_force(held, "a", 1000)
        assert crowd.suggest("a6", 1000) == brute_force(held, "a6", 1000)


class TestChanges:
    async def test_every_operation(self, call: Call) -> None:
        staff = Directory("staff")
        assert await call(staff, "size") == 0
        await call(staff, "add", "u1", "John Smith", aliases=["js"])
        assert await call(staff, "add_many", iter([("u2", "Ann Smith")])) == 1
        assert await call(staff, "suggest", "smith") == [
            Contact("u1", "John Smith"),
            Contact("u2", "Ann Smith"),
        ]
        assert await call(staff, "size") == 2
        await call(staff, "remove", "u2")
        assert await call(staff, "suggest", "", limit=5) == [Contact("u1", "John Smith")]
        with pytest.raises(ValueError, match="label is empty"):
            await call(staff, "add", "u3", "")

    def test_adding_and_suggesting_take_one_round_trip(self) -> None:
        staff = Directory("staff")
        assert round_trips(staff.add, "u1", "Ann Lee") == 1
        assert round_trips(staff.suggest, "l") == 1

    def test_adding_again_replaces_label_and_aliases(self) -> None:
        staff = Directory("staff")
        staff.add("u1", "Old Name", aliases=["Oldie"])
        staff.add("u1", "New Name")
        assert found(staff, "old") == []
        assert staff.suggest("name") == [Contact("u1", "New Name")]
        for member in ("u1", "u1", "nobody"):  # removing an absent member does nothing
            staff.remove(member)
        assert found(staff, "") == []
        assert not server().exists(*keys_of("staff"))

    def test_pairs_can_come_from_a_generator(self) -> None:
        crowd = Directory("crowd")
        assert crowd.add_many((f"u{number}", f"Ann No {number}") for number in range(1500)) == 1500
        assert crowd.size() == 1500
        assert crowd.add_many([]) == 0

    def test_bad_pair_keeps_earlier_pages(self) -> None:
        def pairs() -> Iterator[tuple[str, str]]:
            yield from ((f"u{number}", "Ann") for number in range(600))
            yield "bad", ""

        for guild, given, size in (("crowd", pairs(), 500), ("other", [("u1", "Ann"), ("u2", "")], 0)):
            with pytest.raises(InvalidArgument, match="label is empty"):
                Directory(guild).add_many(given)
            assert Directory(guild).size() == size

    def test_duplicate_member_in_a_page_gets_its_last_label(self) -> None:
        crowd = Directory("crowd")
        crowd.add_many([("u1", "Ann"), ("u1", "Bob")])
        assert (found(crowd, "ann"), found(crowd, "bob"), crowd.size()) == ([], ["u1"], 1)


class TestPinyin:
    """Chinese labels match by pinyin and initials."""

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
    def test_labels_and_contacts(self, label: str, prefixes: str) -> None:
        recent = touched(label)
        Directory("staff").add("u1", label)
        for prefix in prefixes.replace("_", "\u3000").split(" "):
            assert Directory("staff").suggest(prefix) == [Contact("u1", label)], prefix
            assert recent.suggest(prefix) == [label], prefix

    def test_without_pypinyin_only_the_label_matches_until_it_is_added_again(self) -> None:
        staff = Directory("staff")
        with without_pypinyin():
            staff.add("u1", "王小明")
            assert (found(staff, "wang"), found(staff, "王")) == ([], ["u1"])
        staff.add("u1", "王小明")
        assert found(staff, "wxm") == ["u1"]

    def test_the_folded_label_comes_first(self) -> None:
        assert all_suffixes(["王 Ⅳ", "A"])[:3] == ["王 iv", "iv", "a"]

    def test_pypinyin_is_imported_for_the_first_chinese_character(self) -> None:
        code = """if True:
            import sys
            from django_redis_messaging.services.directories.folding import all_suffixes
            all_suffixes(["Ann Łee", "キム", "김"])
            assert "pypinyin" not in sys.modules
            all_suffixes(["王"])
            assert "pypinyin" in sys.modules
        """
        subprocess.run([sys.executable, "-c", code], check=True)


class TestRecentContacts:
    async def test_every_operation(self, call: Call) -> None:
        recent = RecentContacts("ann", order="frequency")
        assert (await call(recent, "list"), await call(recent, "suggest", "")) == ([], [])
        for contact in ["bob", "cleo", "bob"]:
            await call(recent, "touch", contact)
        assert await call(recent, "list") == ["bob", "cleo"]
        assert await call(recent, "suggest", "C") == ["cleo"]
        await call(recent, "remove", "bob")
        assert await call(recent, "list") == ["cleo"]

    def test_every_touch_updates_both_orders(self) -> None:
        assert touched("bob", "cleo", "bob", "dan", "eve").list() == ["eve", "dan", "bob", "cleo"]
        assert RecentContacts("ann", order="frequency").list() == ["bob", "eve", "dan", "cleo"]

    def test_size_limit_removes_the_oldest_or_the_least_used_but_not_the_new_contact(self) -> None:
        assert touched("bob", "cleo", "dan", size=2).list() == ["dan", "cleo"]
        assert RecentContacts("ann").list() == ["dan", "cleo"]
        often = touched("bob", "bob", "cleo", "cleo", "dan", user="eve", size=2, order="frequency")
        assert often.list() == ["cleo", "dan"]

    def test_size_limits_reads(self) -> None:
        touched(*"abcdef", "a", "a")
        assert RecentContacts("ann", size=2).list() == ["a", "f"]
        assert RecentContacts("ann", size=2, order="frequency").list() == ["a", "f"]

    def test_lowered_size_removes_many_at_once(self) -> None:
        touched(*(str(number) for number in range(700)), size=1000)
        small = touched("x", size=10)
        assert len(RecentContacts("ann", size=1000).list()) == 201  # no script moves more than 500
        small.touch("y")
        assert RecentContacts("ann", size=1000).list()[:3] == ["y", "x", "699"]
        assert len(uses_of("ann")) == 10

    def test_removed_contact_counts_from_one(self) -> None:
        recent = touched("bob", "bob", "bob", "cleo", "dan", size=2)
        recent.touch("bob")
        assert uses_of("ann") == {b"bob": 1, b"dan": 1}

    @pytest.mark.parametrize(
        ("prefix", "contacts"),
        [
            ("", ["john.smith jones", "Straße", "İbo", "j@x.org"]),
            ("J", ["john.smith jones", "j@x.org"]),
            ("smith j", ["john.smith jones"]),
            ("STRASSE", ["Straße"]),
            ("i\u0307b", ["İbo"]),
            ("x.", ["j@x.org"]),
            ("mith", []),
        ],
    )
    def test_suggestions_match_folded_word_starts(self, prefix: str, contacts: list[str]) -> None:
        recent = touched("j@x.org", "İbo", "Straße", "john.smith jones")
        assert recent.suggest(prefix) == contacts
        assert recent.suggest(prefix, limit=1) == contacts[:1]

    @pytest.mark.parametrize("name", ["a:b", "{x}", "a b", "%", "`", "😀", "e\u0301", "\n"])
    def test_unusual_names_are_stored_unchanged(self, name: str) -> None:
        assert touched(name, user=name).list() == [name]
        assert RecentContacts("ann").list() == []

    def test_touches_are_remembered_for_a_limited_time(self) -> None:
        touched("bob", "cleo")
        expiries = [server().pttl(key) for key in contact_keys("ann").contact_touches if server().exists(key)]
        # one to two windows, of two COMMAND_DEADLINEs each
        window = 2000 * conf.current().COMMAND_DEADLINE
        assert expiries and all(window / 2 < ms <= 2 * window for ms in expiries)
