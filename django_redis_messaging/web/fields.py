"""Forms: the field to choose people, which sites use too (forms.py), and what the pages accept."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.forms.boundfield import BoundField
from django.forms.utils import flatatt
from django.template.loader import render_to_string
from django.utils.datastructures import MultiValueDict
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from .. import conf
from ..errors import MessagingError
from ..services.rates.user_rates import UserRate
from . import identity as identities
from . import problems
from .base import MAX_SEARCH_LENGTH
from .people import SUGGESTIONS_PER_PAGE, People, Person, people_named, reachable_labels, with_named
from .problems import Answer, Problem
from .texts import is_visible

#: what is appended to a field's name for the text that is typed to search, and for the ids that were found
TYPED, FOUND = "-q", "-found"
#: maximum characters of a request id
REQUEST_ID_LENGTH = 64
#: C0 controls but tab and newline: nobody types them, and JSON stores each as six bytes
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f]")


@dataclasses.dataclass
class Chosen:
    """The value of the widget: member ids, the text in the search field, and the ids found for it."""

    ids: list[str]
    typed: str = ""
    found: Sequence[str] = ()

    @classmethod
    def of(cls, value: Any) -> Chosen:
        """An initial value (an id, several, or nothing), or one of the widget."""
        if isinstance(value, Chosen):
            return value
        values = [value] if isinstance(value, str) else value or []
        return cls([str(member) for member in values if member])


class ContactWidget(forms.Widget):
    """Chosen people, and a search field that suggests others while the user types.

    Without JavaScript, the text in the search field is looked up when the form is submitted.
    """

    template_name = "django_redis_messaging/widgets/contact.html"
    multiple = False
    #: the user of the form, and the ids of the initial value
    user: Any = None
    initial: frozenset[str] = frozenset()
    #: the people to choose from, if the typed text fits several
    found: Sequence[Person] = ()

    class Media:
        css: ClassVar = {"all": ["django_redis_messaging/messaging.css"]}
        js: ClassVar = [forms.Script("django_redis_messaging/picker.js", type="module")]

    def value_from_datadict(self, data: Mapping[str, Any], files: Any, name: str) -> Chosen:
        values, found = (_values(data, key) for key in (name, name + FOUND))
        ids = dict.fromkeys(_storable(value) for value in values if value)
        return Chosen(list(ids), _storable(data.get(name + TYPED) or ""), found)

    def value_omitted_from_data(self, data: Mapping[str, Any], files: Any, name: str) -> bool:
        return name not in data and name + TYPED not in data

    def use_required_attribute(self, initial: Any) -> bool:
        return False  # the search field is empty once somebody is chosen

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        context = super().get_context(name, None, attrs)
        chosen, attributes = Chosen.of(value), dict(context["widget"]["attrs"])
        people, labels = People(identities.current()), self._labels(chosen.ids)
        people.show_all([*(Person(member, label) for member, label in labels.items()), *self.found])
        context |= {
            # Of the others, whose ids the browser may have made up, only these are shown.
            "chosen": [people[id] if id in labels else Person(id, id) for id in chosen.ids],
            "typed": chosen.typed,
            "typed_name": name + TYPED,
            "found": [people[person.id] for person in self.found],
            "multiple": self.multiple,
            "input_id": attributes.pop("id", f"id_{name}"),
            "attributes": flatatt(attributes),
        }
        return context

    def _labels(self, ids: Sequence[str]) -> dict[str, str]:
        """id → label of people of the initial value, and of those whom the user could find: the browser may
        have made up the ids."""
        identity = identities.current()
        labels = identity.labels(member for member in ids if member in self.initial)
        others = [member for member in ids if member not in labels]
        if others and self.user is not None:
            with suppress(MessagingError):  # else the ids are shown
                searches = math.ceil(len(others) / SUGGESTIONS_PER_PAGE)
                UserRate.of(identity.member_id(self.user), "search").require(searches)
                labels |= reachable_labels(identity, self.user, others)
        return labels

    # Templates of the site may replace the widget's, which the renderer of forms would not find.
    def _render(self, template_name: str, context: Any, renderer: Any = None) -> SafeString:
        return render_to_string(template_name, context)


def _values(data: Mapping[str, Any], key: str) -> list[str]:
    """What a form sends under this key, or a dict has there."""
    return data.getlist(key) if isinstance(data, MultiValueDict) else Chosen.of(data.get(key)).ids


def _storable(text: str) -> str:
    """The text with ? for lone surrogates, which some charsets have: they can't be stored or shown."""
    return str(text).encode(errors="replace").decode()


class ContactField(forms.Field):
    """A person, or with `multiple=True` several: the value is a member id, or a list of them.

    The user of the form may choose the people of their directories (the guild rule), and may keep those of
    the initial value. The form must know its user: see ContactFormMixin. At most `limit` people. Nobody is
    "" or `empty_value`, or [].
    """

    widget: ContactWidget = ContactWidget  # type: ignore[assignment]  # an instance in instances
    default_error_messages: ClassVar = {
        "unknown": _("Nobody whom you can choose is called “%(name)s”."),
        "unavailable": _("Search is unavailable. Try again."),
        "several": _("Several people match “%(name)s”. Choose one of them."),
        "limit": ngettext_lazy(
            "Choose at most %(limit)d person.", "Choose at most %(limit)d people.", "limit"
        ),
    }

    def __init__(
        self, *, multiple: bool = False, limit: int = 100, empty_value: str | None = "", **options: Any
    ) -> None:
        self.multiple, self.limit, self.empty_value = multiple, limit, empty_value
        options.pop("max_length", None)  # of a model's field, which checks it
        super().__init__(**options)
        self.widget.multiple = multiple

    def get_bound_field(self, form: forms.BaseForm, field_name: str) -> BoundField:
        bound = super().get_bound_field(form, field_name)
        self.widget.user = getattr(form, "contact_user", None)
        self.widget.initial = frozenset(Chosen.of(bound.initial).ids)
        return bound

    def has_changed(self, initial: Any, data: Any) -> bool:
        chosen = Chosen.of(data)
        return not self.disabled and (bool(chosen.typed.strip()) or Chosen.of(initial).ids != chosen.ids)

    def clean(self, value: Any) -> Any:
        try:
            ids = self._allowed(Chosen.of(value))
        except MessagingError as error:  # of Redis, or too many searches
            raise self._error("unavailable") from error
        ids = ids if self.multiple else ids[-1:]  # the one that was chosen last
        if self.required and not ids:
            raise ValidationError(self.error_messages["required"], code="required")
        result = ids if self.multiple else next(iter(ids), self.empty_value)
        self.run_validators(result)
        return result

    def _allowed(self, chosen: Chosen) -> list[str]:
        """The ids of the chosen people. Raises the ValidationError for those who can't be chosen."""
        ids, typed = chosen.ids, chosen.typed.strip()
        if self.disabled:
            return ids
        if typed:
            ids = self._with_typed(chosen, typed)
        if len(ids) > self.limit:
            raise self._error("limit", limit=self.limit)
        added = [member for member in ids if member not in self.widget.initial]
        allowed = reachable_labels(identities.current(), self._required_user, added) if added else {}
        for member in added:
            if member not in allowed:
                raise self._error("unknown", name=member)
        return ids

    def _with_typed(self, chosen: Chosen, typed: str) -> list[str]:
        """The ids of the chosen people and of the one with this name."""
        if len(typed) > MAX_SEARCH_LENGTH:
            raise self._error("unknown", name=f"{typed[:MAX_SEARCH_LENGTH]}…")
        user, identity = self._required_user, identities.current()
        UserRate.of(identity.member_id(user), "search").require()
        named = people_named(identity, user, typed.replace("\0", ""))
        ids = with_named(named, chosen.ids, chosen.found)
        if ids is None:
            self.widget.found = named
            raise self._error("several" if named else "unknown", name=typed)
        return ids

    @property
    def _required_user(self) -> Any:
        if self.widget.user is None:
            raise ImproperlyConfigured(
                "A form with a ContactField must know its user: derive it from ContactFormMixin and create "
                "it with contact_user=request.user, or use ContactAdminMixin."
            )
        return self.widget.user

    def _error(self, code: str, **params: Any) -> ValidationError:
        return ValidationError(self.error_messages[code], code=code, params=params)


class ContactFormMixin:
    """For forms with a ContactField: `Form(request.POST, contact_user=request.user)`."""

    contact_user: Any = None

    def __init__(self, *args: Any, contact_user: Any = None, **options: Any) -> None:
        if contact_user is not None:
            self.contact_user = contact_user
        super().__init__(*args, **options)


class ContactAdminMixin:
    """For ModelAdmin and its inlines: forms know their user, and the fields of the model in `contact_fields`,
    which store member ids, are ContactFields. A JSONField stores several."""

    contact_fields: Iterable[str] = ()

    def formfield_for_dbfield(self, db_field: Any, request: Any, **options: Any) -> Any:
        if db_field.name not in self.contact_fields:
            return super().formfield_for_dbfield(db_field, request, **options)  # type: ignore[misc]
        multiple = db_field.get_internal_type() == "JSONField"
        return ContactField(
            multiple=multiple,
            required=not db_field.blank,
            label=capfirst(db_field.verbose_name),
            help_text=db_field.help_text,
            empty_value=None if db_field.null else "",
        )

    def get_form(self, request: Any, *args: Any, **options: Any) -> Any:
        return _with_user(super().get_form(request, *args, **options), request.user)  # type: ignore[misc]

    def get_formset(self, request: Any, *args: Any, **options: Any) -> Any:
        formset = super().get_formset(request, *args, **options)  # type: ignore[misc]
        formset.form = _with_user(formset.form, request.user)
        return formset


def _with_user(form: type, user: Any) -> type:
    return type(form)(form.__name__, (form,), {"contact_user": user})


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
