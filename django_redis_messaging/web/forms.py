"""What people fill in."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from .. import conf
from . import problems

#: characters of a request id
REQUEST_ID_LENGTH = 64


class MessageForm(forms.Form):
    """A message: to be sent, or the new body of one."""

    body = forms.CharField(label=_("Message"), widget=forms.Textarea(attrs={"rows": 1}))
    request_id = forms.CharField(required=False, max_length=REQUEST_ID_LENGTH)
    reply_to = forms.IntegerField(required=False, min_value=1)

    def clean_body(self) -> str:
        return lines(self.cleaned_data["body"])


class TitleForm(forms.Form):
    """A chat's title; empty: it is called by its members' names."""

    title = forms.CharField(label=_("Title"), required=False)


class PositionForm(forms.Form):
    """Up to which message somebody has read."""

    up_to = forms.CharField(max_length=200)


class NewChatForm(TitleForm):
    """A chat to be opened. The recipients are `to`, any number of times."""

    body = forms.CharField(label=_("First message"), required=False, widget=forms.Textarea)
    request_id = forms.CharField(required=False, max_length=REQUEST_ID_LENGTH)

    def clean_body(self) -> str:
        return lines(self.cleaned_data["body"])


def lines(text: str) -> str:
    """Browsers send CRLF; a line break is one character."""
    return text.replace("\r\n", "\n")


def cleaned(form: forms.Form) -> dict[str, Any]:
    """The form's data, checked; else the Problem to answer with."""
    if not form.is_valid():
        raise problems.invalid(" ".join(str(message) for texts in form.errors.values() for message in texts))
    _fits(form.cleaned_data.get("title", ""), conf.current().TITLE_MAX_BYTES)
    _fits(form.cleaned_data.get("body", ""), conf.current().MESSAGE_MAX_BYTES)
    return form.cleaned_data


def _fits(text: str, limit: int) -> None:
    if len(text.encode(errors="replace")) > limit:
        raise problems.too_long()
