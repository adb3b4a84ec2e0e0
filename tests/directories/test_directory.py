"""Directories: results equal those of a brute-force search, also during concurrent changes."""

import inspect
import itertools
import threading
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_redis_messaging import conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.commands import Script
from django_redis_messaging.errors import ConfigurationError, LimitExceeded, Unavailable
from django_redis_messaging.services.directories.directory import (
    Contact,
    Directory,
    DirectoryKeys,
    directories_key,
    forget_member,
)
from tests.support.missing_packages import without_pypinyin
from tests.support.scripts import server_clock
from tests.support.server import reply_to

from ..support.server import get_redis_connection

numbers = itertools.count()


def fold(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def word_starts(text: str) -> list[int]:
    return [at for at in range(len(text)) if at == 0 or text[at - 1].isspace() or text[at - 1] in "-_.@"]


def unspelled(text: str) -> list[str]:
    return []


def brute_force(
    held: dict[str, list[str]], prefix: str, limit: int, spell: Callable[[str], list[str]] = unspelled
) -> list[Contact]:
    """Brute-force search; `held` maps members to label and aliases, `spell` texts to spellings."""
    best = []
    for member, texts in held.items():
        folded = [fold(text) for text in texts]
        rests = [text[at:] for text in folded for at in word_starts(text)]
        rests += [rest for text in folded for rest in spell(text)]
        matching = [rest for rest in rests if rest.startswith(fold(prefix))]
        if matching:
            best.append((min(matching), member))
    return [Contact(member, held[member][0]) for _, member in sorted(best)[:limit]]


def found(directory: Directory, prefix: str, limit: int = 10) -> list[str]:
    return [contact.id for contact in directory.suggest(prefix, limit)]


def test_results_from_each_word_start_are_sorted_by_suffix() -> None:
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
    ("label", "prefix"),
    [
        ("\U0001d49cnn", "an"),
        ("ann", "\uff21NN"),
        ("Straße", "STRASS"),
        ("GROSS", "groß"),
        ("İbo", "i\u0307b"),
        ("ﬁnn", "FI"),
        ("e\u0301a", "\xc9"),
        ("ΟΔΟΣ", "οδος"),
        ("a\u3000B", "b"),
        ("x\uff20y", "Y"),
    ],
)
def test_texts_that_fold_alike_match(label: str, prefix: str) -> None:
    Directory("staff").add("u1", label)
    assert Directory("staff").suggest(prefix) == [Contact("u1", label)]


@pytest.mark.parametrize(("label", "prefix"), [("Élodie", "e"), ("ǰan", "j"), ("ΐ", "\u03b9"), ("한", "하")])
def test_part_of_a_code_point_does_not_match(label: str, prefix: str) -> None:
    Directory("staff").add("u1", label)
    assert found(Directory("staff"), prefix) == []


def test_each_member_is_returned_once_at_its_first_position() -> None:
    staff = Directory("staff")
    staff.add("u1", "ab ac", aliases=["aa"])
    staff.add("u2", "ab")
    assert found(staff, "a") == ["u1", "u2"]
    assert found(staff, "ab") == ["u2", "u1"]


def test_empty_prefix_lists_all() -> None:
    staff = Directory("staff")
    staff.add_many([("u1", "b"), ("u2", "z a"), ("u3", "c")])
    assert found(staff, "") == ["u2", "u1", "u3"]
    assert found(staff, "", limit=2) == ["u2", "u1"]


def test_equal_labels_are_sorted_by_id() -> None:
    staff = Directory("staff")
    staff.add_many((member, "Ann Lee") for member in ["b", "a", "a0", "é", "😀", "B"])
    assert found(staff, "lee") == ["B", "a", "a0", "b", "é", "😀"]


def test_prefixes_are_bounded() -> None:
    assert found(Directory("staff"), "\ufdfa" * 1000) == []
    with pytest.raises(ValueError, match="at most 1000 characters, not 1001"):
        Directory("staff").suggest("x" * 1001)


def test_long_labels_with_a_common_prefix_are_sorted() -> None:
    staff = Directory("staff")
    head = "x" * 250
    staff.add_many([("u1", head + "c"), ("u2", head + "a"), ("u3", head + "b")])
    assert found(staff, "x") == ["u2", "u3", "u1"]
    assert found(staff, head + "B") == ["u3"]
    assert found(staff, head + "bb") == []


def test_guilds_are_separate() -> None:
    Directory("a").add("u1", "Ann")
    Directory("a:b{").add("u2", "Ann")
    assert found(Directory("a"), "a") == ["u1"]
    assert found(Directory("a:b{"), "a") == ["u2"]


def test_size_counts_members() -> None:
    staff = Directory("staff")
    assert staff.size() == 0
    staff.add("u1", "a b c", aliases=["d"])
    staff.add("u2", "a")
    assert staff.size() == 2
    staff.remove("u1")
    assert staff.size() == 1


def test_adding_again_replaces_label_and_aliases() -> None:
    staff = Directory("staff")
    staff.add("u1", "Old Name", aliases=["Oldie"])
    staff.add("u1", "New Name")
    assert found(staff, "old") == []
    assert staff.suggest("name") == [Contact("u1", "New Name")]
    staff.remove("u1")
    assert not get_redis_connection(conf.alias()).exists(*keys_of("staff"))


def test_removing_an_absent_member_does_nothing() -> None:
    staff = Directory("staff")
    staff.add("u1", "Ann")
    staff.remove("u1")
    staff.remove("u1")
    staff.remove("nobody")
    assert found(staff, "") == []


# Texts that fold in unusual ways, and characters with a meaning for this app or for Redis.
PIECES = [
    "a", "b", "A", "B", "ab", " ", "  ", "-", "_", ".", "@", "{", "}", "`", ":", "%", "[", "(", "\xff",
    "ß", "ẞ", "ss", "İ", "i\u0307", "I", "\u0131", "Σ", "ς", "é", "e\u0301", "\u0301", "ﬁ", "ﷺ", "\xb4", "…",
    "\u212b", "Å", "한", "하", "\u1112", "中", "文", "ｱ", "ア", "😀", "👩\u200d🚀", "\u200b", "\u3000",
    "\x7f", "\u2028", "\x85", "\x1f", "ǰ", "j", "ᾳ", "\U0001d49c", "\U0010ffff", "\ue000", "\uffff",
]  # fmt: skip
texts = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8),
)
members = st.sampled_from(["u1", "u2", "u3", "ü", "{", "`"])


def changes(texts: st.SearchStrategy[str]) -> st.SearchStrategy[list[Any]]:
    """Changes of a directory, with these labels and aliases."""
    return st.lists(
        st.one_of(
            st.tuples(st.just("add"), members, texts, st.lists(texts, max_size=2)),
            st.tuples(st.just("remove"), members),
            st.tuples(st.just("many"), st.lists(st.tuples(members, texts), max_size=5)),
        ),
        max_size=8,
    )


@given(changes(texts), st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_equal_to_brute_force(steps: list[Any], data: st.DataObject) -> None:
    with without_pypinyin():
        compare_with_brute_force(steps, data, texts)


def compare_with_brute_force(
    steps: list[Any],
    data: st.DataObject,
    texts: st.SearchStrategy[str],
    spell: Callable[[str], list[str]] = unspelled,
) -> None:
    directory = Directory(f"guild-{next(numbers)}")
    held: dict[str, list[str]] = {}
    for verb, *arguments in steps:
        if verb == "add":
            member, label, aliases = arguments
            directory.add(member, label, aliases=aliases)
            held[member] = [label, *aliases]
        elif verb == "remove":
            directory.remove(arguments[0])
            held.pop(arguments[0], None)
        else:
            assert directory.add_many(pair for pair in arguments[0]) == len(arguments[0])
            held.update((member, [label]) for member, label in arguments[0])
        for prefix in ["", data.draw(st.one_of(texts, beginnings(held, spell)), label="prefix")]:
            limit = data.draw(st.integers(1, 4), label="limit")
            assert directory.suggest(prefix, limit) == brute_force(held, prefix, limit, spell)
    assert directory.size() == len(held)


def beginnings(held: dict[str, list[str]], spell: Callable[[str], list[str]]) -> st.SearchStrategy[str]:
    """Prefixes that a user could type to find an existing member."""
    labels = [text for several in held.values() for text in several] or ["a"]
    known = labels + [rest for text in labels for rest in spell(fold(text))]
    spans = st.tuples(st.sampled_from(known), st.integers(0, 8), st.integers(1, 8))
    return spans.map(lambda span: span[0][span[1] : span[1] + span[2]])


def test_label_that_grows_when_folded_is_indexed_completely() -> None:
    staff = Directory("staff")
    staff.add("u1", "ﷺ" * 20)
    assert found(staff, "ﷺ" * 20) == ["u1"]
    assert found(staff, "ﷺ" * 21) == []


def words(head: str, many: int) -> list[str]:
    """Aliases with `many` word starts that all begin with `head`."""
    return [" ".join([head] * 49) + f" {head}{number}" for number in range(many // 50)]


def test_members_with_many_matching_words_hide_no_others() -> None:
    crowd = Directory("crowd")
    held = {"u1": ["aa", *words("aa", 100)], "u2": ["ab", *words("ab", 100)], "u3": ["ac"], "u4": ["ad"]}
    for member, (label, *aliases) in held.items():
        crowd.add(member, label, aliases=aliases)
    for limit in (1, 2, 3, 4, 1000):
        assert crowd.suggest("a", limit) == brute_force(held, "a", limit)


def test_members_whose_every_character_starts_a_word_cost_one_more_round_trip() -> None:
    crowd = Directory("crowd")
    crowd.add("z", "-zed")
    for limit in (10, 16):
        crowd.add_many((f"u{number}", "-" * 128) for number in range(limit - 1))
        assert found(crowd, "-", limit)[-1] == "z"
        assert round_trips(Directory.suggest, crowd, "-", limit) == 2
        assert round_trips(Directory.suggest, crowd, "-", limit - 1) == 1


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
def test_ranges_of_any_length_are_read_in_full(members: dict[str, list[str]], trips: int) -> None:
    crowd = Directory("crowd")
    crowd.add_many((member, label) for member, (label,) in members.items())
    limit = len(members) + 1
    assert crowd.suggest("", limit) == brute_force(members, "", limit)
    assert round_trips(Directory.suggest, crowd, "", limit) == trips


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda staff: staff.add("u2", "a"), ["u2", "u1"]),
        (lambda staff: staff.remove_many(["u1", "u2"]), []),
    ],
    ids=["label changed", "all removed"],
)
def test_changes_between_two_reads(change: Callable[[Directory], None], left: list[str]) -> None:
    staff = Directory("staff")
    staff.add("u1", "aa ab ac")
    staff.add("u2", "az")
    steps = Directory.suggest.__wrapped__(staff, "a", 2)  # type: ignore[attr-defined]
    reply = reply_to(next(steps))
    change(staff)
    step = steps.send(reply)
    with pytest.raises(StopIteration) as end:
        steps.send(reply_to(step))
    assert [contact.id for contact in end.value.value] == left


def test_thousand_results() -> None:
    crowd = Directory("crowd")
    held = {f"u{number}": [f"a{number % 7} a"] for number in range(1100)}
    crowd.add_many((member, label) for member, (label,) in held.items())
    assert crowd.suggest("a", 1000) == brute_force(held, "a", 1000)
    assert crowd.suggest("a6", 1000) == brute_force(held, "a6", 1000)


def test_suggest_and_add_take_one_round_trip() -> None:
    staff = Directory("staff")
    assert round_trips(Directory.add, staff, "u1", "Ann Lee") == 1
    assert round_trips(Directory.suggest, staff, "l") == 1


def round_trips(operation: Any, directory: Directory, *arguments: Any) -> int:
    steps, count = operation.__wrapped__(directory, *arguments), 0
    step = next(steps)
    while True:
        count += 1
        try:
            step = steps.send(reply_to(step))
        except StopIteration:
            return count


# Many members


def test_pairs_can_come_from_a_generator() -> None:
    crowd = Directory("crowd")
    assert crowd.add_many((f"u{number}", f"Ann No {number}") for number in range(1500)) == 1500
    assert crowd.size() == 1500
    assert crowd.add_many([]) == 0


def test_bad_pair_keeps_earlier_pages() -> None:
    crowd = Directory("crowd")

    def pairs() -> Iterator[tuple[str, str]]:
        yield from ((f"u{number}", "Ann") for number in range(600))
        yield "bad", ""

    with pytest.raises(ValueError, match="label is empty"):
        crowd.add_many(pairs())
    assert crowd.size() == 500
    with pytest.raises(ValueError, match="label is empty"):
        Directory("other").add_many([("u1", "Ann"), ("u2", "")])
    assert Directory("other").size() == 0


def test_duplicate_member_in_a_page_gets_its_last_label() -> None:
    crowd = Directory("crowd")
    crowd.add_many([("u1", "Ann"), ("u1", "Bob")])
    assert (found(crowd, "ann"), found(crowd, "bob"), crowd.size()) == ([], ["u1"], 1)


# Concurrent changes


def run_together(*targets: Any) -> None:
    failures: list[BaseException] = []

    def guarded(target: Any) -> None:
        try:
            target()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=[target], daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clients.close()
    assert not failures


def test_concurrent_reader_gets_the_old_label_or_the_new_one() -> None:
    staff = Directory("staff")
    staff.add("u1", "alpha one two")
    done = threading.Event()

    def change() -> None:
        for _ in range(200):
            staff.add("u1", "beta three", aliases=["gamma"])
            staff.add("u1", "alpha one two")
        done.set()

    def look() -> None:
        while not done.is_set():
            assert [contact.id for contact in staff.suggest("")] == ["u1"]
            assert all(contact.label == "beta three" for contact in staff.suggest("gam"))
            assert all(contact.label == "alpha one two" for contact in staff.suggest("one"))

    run_together(change, look, look)


def test_concurrent_changes_leave_no_stale_entries() -> None:
    staff = Directory("staff")

    def change(seed: int) -> None:
        for turn in range(60):
            member = f"u{turn % 3}"
            staff.add(member, f"name {seed} {turn}", aliases=[f"alias {seed}"])
            if turn % 5 == seed:
                staff.remove(member)
            staff.add_many([(member, f"other {seed}"), (f"own-{seed}", "x")])

    run_together(*(lambda seed=seed: change(seed) for seed in range(4)))
    client = get_redis_connection(conf.alias())
    entries, records = keys_of("staff")
    expected = set()
    for member, record in client.hgetall(records).items():
        label, *rests = record.split(b"\0")
        expected |= {b"\0".join([rest, member, label]) for rest in rests}
    assert set(client.zrange(entries, 0, -1)) == expected
    assert staff.size() == 7


# Forgetting


def forget(member: str) -> None:
    clients.perform(conf.alias(), forget_member(conf.prefix(), member))


def registered() -> dict[bytes, float]:
    return dict(
        get_redis_connection(conf.alias()).zrange(directories_key(conf.prefix()), 0, -1, withscores=True)
    )


def grow_old(guild: str) -> None:
    get_redis_connection(conf.alias()).zadd(directories_key(conf.prefix()), {guild: 1})


def test_forget_removes_the_member_from_every_directory() -> None:
    guilds = [f"guild {number}" for number in range(150)]
    for guild in guilds:
        Directory(guild).add_many([("u1", "Ann"), ("u2", "Ann")])
    forget("u1")
    assert all(found(Directory(guild), "a") == ["u2"] for guild in guilds)


def test_empty_directory_is_unregistered_after_the_grace_period() -> None:
    Directory("empty").add("u1", "Ann")
    Directory("full").add_many([("u1", "Ann"), ("u2", "Ann")])
    grow_old("empty")
    grow_old("full")
    forget("u1")
    assert set(registered()) == {b"full"}
    Directory("full").remove("u2")
    assert set(registered()) == set()


def test_empty_directory_stays_registered_during_the_grace_period() -> None:
    Directory("staff").add("u1", "Ann")
    for _ in range(2):
        forget("u1")
        assert set(registered()) == {b"staff"}


def test_clock_that_was_set_back_does_not_end_the_grace_period() -> None:
    with server_clock("NOW - 3600000"):
        Directory("staff").add("u1", "Ann")
    Directory("staff").add("u2", "Bob")
    latest = registered()
    with server_clock("NOW - 3600000"):
        Directory("staff").add("u3", "Cleo")
    assert registered() == latest


def empty_at_once(*guilds: str) -> None:
    for guild in guilds:
        Directory(guild).add("u1", "Ann")
        Directory(guild).remove("u1")


def test_directories_emptied_at_once_are_unregistered_later() -> None:
    empty_at_once(*(f"guild {number}" for number in range(5)), "refilled")
    Directory("refilled").add("u2", "Bob")
    Directory("full").add("u1", "Ann")
    assert round_trips(Directory.remove, Directory("guild 0"), "u1") == 2  # none is checked again yet
    with server_clock("NOW + 3600000"):
        empty_at_once("other")
        assert set(registered()) == {b"refilled", b"full", b"other"}
    Directory("refilled").remove("u2")
    with server_clock("NOW + 7200000"):
        empty_at_once("another")
        assert set(registered()) == {b"full", b"another"}


def test_directory_whose_only_add_was_refused_is_unregistered_later(settings: Any) -> None:
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "DIRECTORY_MAX_ENTRIES": 1}
    with pytest.raises(LimitExceeded):
        Directory("refused").add("u1", "Ann Lee")
    assert registered()[b"refused"] < 0
    Directory("full").add("u1", "Ann")
    with pytest.raises(LimitExceeded):
        Directory("full").add("u2", "Bob")
    assert registered()[b"full"] > 0


def test_directory_filled_after_it_was_found_empty_stays_registered() -> None:
    empty_at_once("filled", "marked")
    # an add that had registered the directory before it was emptied; and one that has only marked its member
    filled, marked = (DirectoryKeys(conf.prefix(), guild) for guild in ("filled", "marked"))
    reply_to(Script("directories/add", filled.all_keys, [1000, "u2", "Bob\0bob"]))
    get_redis_connection(conf.alias()).zadd(marked.indexed, {"u2": 1})
    with server_clock("NOW + 3600000"):
        empty_at_once("other", "other")
        assert set(registered()) == {b"filled", b"marked", b"other"}
        # these two are not checked again
        assert [guild for guild, added in registered().items() if added < 0] == [b"other"]
    forget("u2")
    assert Directory("filled").size() == 0
    assert not get_redis_connection(conf.alias()).exists(marked.indexed)


def test_directory_registered_again_during_the_check_stays_registered() -> None:
    empty_at_once("staff")
    with server_clock("NOW + 3600000"):
        Directory("other").add("u1", "Ann")
        steps = Directory.remove.__wrapped__(Directory("other"), "u1")  # type: ignore[attr-defined]
        step = next(steps)
        for _ in range(2):
            step = steps.send(reply_to(step))
        found_empty = reply_to(step)
        Directory("staff").add("u2", "Bob")
        reply_to(steps.send(found_empty))
        assert set(registered()) == {b"staff", b"other"}


def test_directory_with_marks_stays_registered() -> None:
    staff = Directory("staff")
    staff.add("u1", "Ann")
    get_redis_connection(conf.alias()).zadd(DirectoryKeys(conf.prefix(), "staff").indexed, {"u2": 1})
    with server_clock("NOW + 3600000"):
        staff.remove("u1")
    assert set(registered()) == {b"staff"}


def test_add_before_the_pruning_stays_registered() -> None:
    staff = Directory("staff")
    staff.add("u1", "Ann")
    grow_old("staff")
    steps = Directory.remove.__wrapped__(staff, "u1")  # type: ignore[attr-defined]
    prune = steps.send(reply_to(next(steps)))
    staff.add("u2", "Bob")
    reply_to(prune)
    forget("u2")
    assert staff.size() == 0


# Async


async def test_async_versions() -> None:
    staff = Directory("staff")
    await staff.aadd("u1", "John Smith", aliases=["js"])
    assert await staff.aadd_many(iter([("u2", "Ann Smith")])) == 1
    assert await staff.asuggest("smith") == [Contact("u1", "John Smith"), Contact("u2", "Ann Smith")]
    assert await staff.asize() == 2
    await staff.aremove("u2")
    assert await staff.asuggest("", limit=5) == [Contact("u1", "John Smith")]
    with pytest.raises(ValueError, match="label is empty"):
        await staff.aadd("u3", "")


def test_every_operation_has_an_async_version() -> None:
    for verb in ("add", "add_many", "remove", "suggest", "size"):
        twin = getattr(Directory, f"a{verb}")
        assert inspect.iscoroutinefunction(twin)
        assert inspect.signature(twin) == inspect.signature(getattr(Directory, verb))


# Invalid arguments

BAD_NAMES = [("", ValueError), ("a\0b", ValueError), ("a\ud800", ValueError), ("x" * 256, ValueError),
             (7, TypeError), (None, TypeError), (b"u1", TypeError)]  # fmt: skip


@pytest.mark.parametrize(("name", "error"), BAD_NAMES)
def test_bad_guilds_and_members(name: Any, error: type[Exception]) -> None:
    staff = Directory("staff")
    with pytest.raises(error, match="guild"):
        Directory(name)
    for call in (
        lambda: staff.add(name, "Ann"),
        lambda: staff.remove(name),
        lambda: staff.add_many([(name, "Ann")]),
    ):
        with pytest.raises(error, match="member"):
            call()
    assert_nothing_written()


BAD_LABELS = [("", ValueError), ("a\0b", ValueError), ("a\udfff", ValueError), ("é" * 128, LimitExceeded),
              (None, TypeError), (b"Ann", TypeError), (7, TypeError)]  # fmt: skip


@pytest.mark.parametrize(("label", "error"), BAD_LABELS)
def test_bad_labels_and_aliases(label: Any, error: type[Exception]) -> None:
    staff = Directory("staff")
    with pytest.raises(error, match="label"):
        staff.add("u1", label)
    with pytest.raises(error, match="label"):
        staff.add_many([("u1", label)])
    with pytest.raises(error, match="alias"):
        staff.add("u1", "Ann", aliases=["Annie", label])
    assert_nothing_written()


def test_aliases_must_not_be_a_str() -> None:
    with pytest.raises(TypeError, match="aliases"):
        Directory("staff").add("u1", "Ann", aliases="Annie")
    assert_nothing_written()


@pytest.mark.parametrize("pair", ["ab", ("u1",), ("u1", "Ann", "x"), None, 7, {"u1": "Ann", "u2": "Bob"}])
def test_pairs_must_be_pairs(pair: Any) -> None:
    with pytest.raises(TypeError, match="pairs"):
        Directory("staff").add_many([pair])
    assert_nothing_written()


@pytest.mark.parametrize(
    ("prefix", "error"), [(None, TypeError), (b"a", TypeError), ("a\0", ValueError), ("\ud800", ValueError)]
)
def test_bad_prefixes(prefix: Any, error: type[Exception]) -> None:
    staff = Directory("staff")
    staff.add("u1", "a")
    with pytest.raises(error, match="prefix"):
        staff.suggest(prefix)


def test_bad_limits() -> None:
    for bad, error in [
        (0, ValueError),
        (-1, ValueError),
        (1001, ValueError),
        (True, TypeError),
        ("5", TypeError),
    ]:
        with pytest.raises(error, match="limit"):
            Directory("staff").suggest("a", limit=bad)  # type: ignore[arg-type]


def test_too_many_word_starts() -> None:
    staff = Directory("staff")
    staff.add("u1", "-" * 128)
    for label, aliases in [("-" * 129, []), ("a", words("a", 150)), ("…" * 50, [])]:
        with pytest.raises(LimitExceeded, match="word starts") as caught:
            staff.add("u2", label, aliases=aliases)
        assert caught.value.limit == 128 < caught.value.actual
    with pytest.raises(LimitExceeded, match="word starts"):
        staff.add_many([("u2", "-" * 129)])
    assert staff.size() == 1


def test_too_long_folded_texts() -> None:
    staff = Directory("staff")
    # 35 characters of 3 bytes each fold to 61,845 bytes after all word starts together
    aliases = [letter * 255 for letter in "abcdefghijklmn"]
    staff.add("u1", "ﷺ" * 35, aliases=[*aliases, "o" * 121])
    with pytest.raises(LimitExceeded, match=r"\(bytes\)") as caught:
        staff.add("u2", "ﷺ" * 35, aliases=[*aliases, "o" * 122])
    assert (caught.value.limit, caught.value.actual) == (65536, 65537)
    assert staff.size() == 1


def test_full_directory_accepts_only_replacements(settings: Any) -> None:
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "DIRECTORY_MAX_ENTRIES": 4}
    staff = Directory("staff")
    staff.add("u1", "Ann Lee")
    with pytest.raises(LimitExceeded) as caught:
        staff.add_many([("u2", "Bob"), ("u1", "Cleo Lee"), ("u3", "Dan Day")])
    assert (caught.value.limit, caught.value.actual) == (4, 5)
    assert (found(staff, ""), staff.size()) == (["u1"], 1)
    staff.add_many([("u2", "Bob Bee")])
    staff.add("u1", "Eve Ede")
    assert found(staff, "") == ["u2", "u1"]
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "DIRECTORY_MAX_ENTRIES": 1}
    staff.add("u1", "Fay")
    assert found(staff, "f") == ["u1"]


def test_label_limit_is_a_setting(settings: Any) -> None:
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "LABEL_MAX_BYTES": 3}
    Directory("staff").add("u1", "Ann")
    with pytest.raises(LimitExceeded, match="4 is over the limit of 3"):
        Directory("staff").add("u1", "Anna")


# Server failures


@pytest.mark.parametrize("which", [0, 1])
def test_key_of_another_type_raises_an_error_and_changes_nothing(which: int) -> None:
    staff = Directory("staff")
    staff.add("u1", "Ann")
    client, keys = get_redis_connection(conf.alias()), keys_of("staff")
    client.set(keys[which], "not ours")
    before = client.dump(keys[1 - which])
    read = staff.size if which else lambda: staff.suggest("a")
    for call in (lambda: staff.add("u1", "Bob"), lambda: staff.remove("u1"), read):
        with pytest.raises(ConfigurationError, match="another type"):
            call()
    assert client.dump(keys[1 - which]) == before


def test_full_memory_refuses_adding_and_nothing_else() -> None:
    staff = Directory("staff")
    staff.add_many([("u1", "Ann"), ("u2", "Bob")])
    server = get_redis_connection(conf.alias())
    server.config_set("maxmemory", 1)
    try:
        for call in (lambda: staff.add("u1", "Cleo"), lambda: staff.add_many([("u3", "Dan")])):
            with pytest.raises(Unavailable):
                call()
        assert (found(staff, ""), staff.size()) == (["u1", "u2"], 2)
        forget("u1")
        assert found(staff, "") == ["u2"]
        staff.remove("u2")
        assert staff.size() == 0
    finally:
        server.config_set("maxmemory", 0)


def test_flushed_scripts_are_loaded_again() -> None:
    staff = Directory("staff")
    staff.add("u1", "Ann")
    get_redis_connection(conf.alias()).script_flush()
    assert found(staff, "a") == ["u1"]
    get_redis_connection(conf.alias()).script_flush()
    staff.add("u2", "Abe")
    assert found(staff, "a") == ["u2", "u1"]


def keys_of(guild: str) -> tuple[str, str]:
    keys = DirectoryKeys(conf.prefix(), guild)
    return keys.entries, keys.records


def assert_nothing_written() -> None:
    client = get_redis_connection(conf.alias())
    assert not list(client.scan_iter(match=f"{conf.prefix()}:*"))
