"""The answers to errors of the services."""

from __future__ import annotations

import pytest

from django_redis_messaging import (
    ChatExists,
    ChatNotFound,
    ConfigurationError,
    InvalidArgument,
    LimitExceeded,
    MessagingError,
    NotAMember,
    NotPermitted,
    OutcomeUnknown,
    RateExceeded,
    Unavailable,
)
from django_redis_messaging.web import problems


def exceeded(setting: str) -> LimitExceeded:
    return LimitExceeded("something", limit=1, actual=2, setting=setting)


class Slow(Unavailable):
    """An error of a site, derived from one of the services."""


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (InvalidArgument("x"), 400, "invalid", None),
        (NotPermitted("x"), 403, "not_permitted", None),
        (NotAMember("x"), 404, "not_found", None),
        (ChatNotFound("x"), 404, "not_found", None),
        (exceeded("MESSAGE_MAX_BYTES"), 413, "too_long", None),
        (exceeded("TITLE_MAX_BYTES"), 413, "too_long", None),
        (exceeded(""), 413, "too_long", None),
        (exceeded("CHAT_MAX_MEMBERS"), 413, "too_many_members", None),
        (exceeded("INVITE_RATE"), 413, "too_many_people", None),
        (exceeded("USER_MAX_BLOCKS"), 413, "too_many_blocks", None),
        (ChatExists("x"), 409, "exists", None),
        # rounded up
        (RateExceeded("x", limit=1, retry_after=0.2), 429, "too_fast", 1),
        (exceeded("USER_MAX_CHATS"), 429, "too_many_chats", 3600),
        (Unavailable("x"), 503, "unavailable", 5),
        (Slow("x"), 503, "unavailable", 5),
        (OutcomeUnknown("x"), 503, "outcome_unknown", 5),
    ],
    ids=repr,
)
def test_answers(error: MessagingError, status: int, code: str, retry_after: int | None) -> None:
    answer = problems.answer_to(error)
    assert answer is not None
    assert (answer.status, answer.code, answer.retry_after) == (status, code, retry_after)
    assert str(answer.message)


@pytest.mark.parametrize("error", [MessagingError("x"), ConfigurationError("x")], ids=repr)
def test_other_errors_have_no_answer(error: MessagingError) -> None:
    assert problems.answer_to(error) is None


def test_only_invalid_data_has_specific_texts() -> None:
    answer = problems.invalid("Choose a number.").answer
    assert (answer.status, answer.code, answer.message) == (400, "invalid", "Choose a number.")
