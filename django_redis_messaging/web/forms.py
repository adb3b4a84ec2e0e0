"""The forms of the pages."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from .. import conf
from . import problems
from .problems import Answer, Problem
from .texts import is_visible

#: maximum characters of a request id
REQUEST_ID_LENGTH = 64
#: C0 controls but tab and newline: nobody types them, and JSON stores each as six bytes
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f]")


class MessageForm(forms.Form):
    """A new message, or the new body of a message."""

    body = forms.CharField(label=_("Message"), widget=forms.Textarea(attrs={"rows": 1}))
    request_id = forms.CharField(required=False, max_length=REQUEST_ID_LENGTH)
    reply_to = forms.IntegerField(required=False, min_value=1)

    def clean_body(self) -> str:
        return clean_body(self.cleaned_data["body"])


class TitleForm(forms.Form):
    """The title of a chat. Without one, the members' names are shown."""

    title = forms.CharField(label=_("Title"), required=False)

    def clean_title(self) -> str:
        return clean_text(self.cleaned_data["title"])


class PositionForm(forms.Form):
    """The position up to which a user has read: a cursor or a message id."""

    up_to = forms.CharField(max_length=200)


class NewChatForm(TitleForm):
    """A new chat. The recipients are in `to`, a parameter that may be repeated."""

    body = forms.CharField(label=_("First message"), required=False, widget=forms.Textarea)
    request_id = forms.CharField(required=False, max_length=REQUEST_ID_LENGTH)

    def clean_body(self) -> str:
        return clean_body(self.cleaned_data["body"])


def clean_body(text: str) -> str:
    """The text of a message. Raises ValidationError for one of which nothing can be seen."""
    if text and not is_visible(text):
        raise ValidationError(_("This message contains only invisible characters."))
    return clean_text(text)


def clean_text(text: str) -> str:
    """The text with LF for the CRLF that browsers send. Raises ValidationError for other controls."""
    cleaned = text.replace("\r\n", "\n")
    if _CONTROLS.search(cleaned):
        raise ValidationError(_("Control characters are not allowed."))
    return cleaned


def clean(form: forms.Form) -> dict[str, Any]:
    """The cleaned data of the form. Raises the Problem if it isn't valid or is too long."""
    if not form.is_valid():
        texts = (str(message) for messages in form.errors.values() for message in messages)
        raise problems.invalid(" ".join(texts), field=next(iter(form.errors)))
    _check_size(form.cleaned_data.get("title", ""), conf.current().TITLE_MAX_BYTES, problems.TITLE_TOO_LONG)
    _check_size(form.cleaned_data.get("body", ""), conf.current().MESSAGE_MAX_BYTES, problems.TOO_LONG)
    return form.cleaned_data


def _check_size(text: str, max_bytes: int, answer: Answer) -> None:
    if len(text.encode()) > max_bytes:
        raise Problem(answer)
