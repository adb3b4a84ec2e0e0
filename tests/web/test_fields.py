"""Fields to choose people: in forms, in the admin, and with the template tag."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.http import QueryDict
from django.template import Context, Template, TemplateSyntaxError
from django.test import RequestFactory
from django.urls import include, path, reverse
from pytest_django import Settings

from django_redis_messaging import Directory
from django_redis_messaging.forms import ContactAdminMixin, ContactField, ContactFormMixin

from ..support.server import change
from .accounts.models import Remark, Review
from .conftest import client_of


class Form(ContactFormMixin, forms.Form):
    author = ContactField()
    reviewers = ContactField(multiple=True, required=False, limit=3)


class ModelForm(ContactFormMixin, forms.ModelForm):
    author = ContactField()
    reviewers = ContactField(multiple=True, required=False)

    class Meta:
        model = Review
        fields = ("author", "reviewers")


class RemarkInline(ContactAdminMixin, admin.TabularInline):
    model = Remark
    contact_fields = ("by",)
    extra = 1


class ReviewAdmin(ContactAdminMixin, admin.ModelAdmin):
    contact_fields = ("author", "reader", "reviewers")
    inlines = (RemarkInline,)


SITE = admin.AdminSite()
SITE.register(Review, ReviewAdmin)


class Urls:
    urlpatterns = (path("admin/", SITE.urls), path("messages/", include("django_redis_messaging.urls")))


@pytest.fixture
def users(person: Callable[..., User]) -> list[User]:
    """Four users in the directory "everyone", two of the same name; and Eve, who is in no directory."""
    names = ["Ann Lee", "Bob Ray", "Cat Ono", "Bob Ray", "Eve Doe"]
    users = [person(f"user{at}", first_name=name) for at, name in enumerate(names)]
    Directory("everyone").remove(str(users[4].pk))
    return users


def errors(form: forms.BaseForm, name: str) -> list[str]:
    return [str(error.code) for error in form.errors.as_data().get(name, [])]


class TestField:
    def test_values(self, users: list[User]) -> None:
        bob, cat = str(users[1].pk), str(users[2].pk)
        data = {"author": bob, "reviewers": [cat, bob]}
        form = Form(data, contact_user=users[0])
        assert form.is_valid(), form.errors
        assert form.cleaned_data == data
        assert form.has_changed()
        same = Form(data, contact_user=users[0], initial=data)
        assert same.is_valid() and not same.has_changed()
        disabled = Form(data, contact_user=users[0], initial={"author": "old"})
        disabled.fields["author"].disabled = True
        assert disabled.is_valid() and disabled.cleaned_data["author"] == "old"
        assert "author" not in disabled.changed_data
        with pytest.raises(ImproperlyConfigured, match=r"contact_user=request\.user"):
            Form(data).is_valid()

    @pytest.mark.parametrize(
        ("data", "field", "code"),
        [
            ({"author": "eve"}, "author", "unknown"),
            ({"author": "made-up"}, "author", "unknown"),
            ({"author": "x" * 5000}, "author", "unknown"),
            ({}, "author", "required"),
            ({"author": "bob", "reviewers": ["bob", "cat", "ann", "rob"]}, "reviewers", "limit"),
            ({"author-q": "Zoe"}, "author", "unknown"),
            ({"author-q": "bob ray"}, "author", "several"),
            ({"author-q": "z" * 300}, "author", "unknown"),
            ({"author-q": "\ud800"}, "author", "unknown"),
            ({"author": "\ud800"}, "author", "unknown"),
        ],
    )
    def test_refused(self, users: list[User], data: dict[str, Any], field: str, code: str) -> None:
        ids = dict(zip(["ann", "bob", "cat", "rob", "eve"], (str(user.pk) for user in users), strict=True))

        def translated(value: Any) -> Any:
            return [ids[one] for one in value] if isinstance(value, list) else ids.get(value, value)

        form = Form({key: translated(value) for key, value in data.items()}, contact_user=users[0])
        assert errors(form, field) == [code]

    def test_typed_names_without_javascript(self, users: list[User]) -> None:
        cat = str(users[2].pk)
        form = Form({"author-q": " CAT ono", "reviewers-q": "cat"}, contact_user=users[0])
        assert form.is_valid(), form.errors
        assert form.cleaned_data == {"author": cat, "reviewers": [cat]}

    def test_people_of_the_same_name_are_shown_to_choose_from(self, users: list[User]) -> None:
        form = Form({"author-q": "bob ray"}, contact_user=users[0])
        assert not form.is_valid()
        html = str(form["author"])
        assert 'value="bob ray"' in html and 'aria-invalid="true"' in html
        for user in (users[1], users[3]):
            assert re.search(rf'name="author" value="{user.pk}">', html)
        found = re.findall(r'name="author-found" value="(\d+)"', html)
        data = QueryDict(mutable=True)
        data.update({"author": str(users[3].pk), "author-q": "bob ray"})
        assert errors(Form(data, contact_user=users[0]), "author") == ["several"]
        data.setlist("author-found", found)
        form = Form(data, contact_user=users[0])
        assert form.is_valid() and form.cleaned_data["author"] == str(users[3].pk)

    def test_what_was_chosen_before_may_stay(self, users: list[User]) -> None:
        eve = str(users[4].pk)
        form = Form({"author": eve}, contact_user=users[0], initial={"author": eve})
        assert form.is_valid(), form.errors
        assert "Eve Doe" in str(form["author"])

    def test_made_up_ids_reveal_no_names(self, users: list[User], settings: Settings) -> None:
        eve, bob = str(users[4].pk), str(users[1].pk)
        form = Form({"author": eve, "reviewers": [bob]}, contact_user=users[0])
        assert "Eve Doe" not in str(form["author"])
        assert "Bob Ray" in str(form["reviewers"])
        change(settings, SEARCH_RATE=1)
        texts = [str(Form({"reviewers": [bob]}, contact_user=users[2])["reviewers"]) for _ in range(3)]
        assert ["Bob Ray" in text for text in texts] == [True, False, False]

    def test_searches_have_a_rate(self, users: list[User], settings: Settings) -> None:
        change(settings, SEARCH_RATE=1)
        data = {"author-q": "Zoe"}
        codes = [errors(Form(data, contact_user=users[0]), "author") for _ in range(2)]
        assert codes == [["unknown"], ["unavailable"]]

    def test_model_forms_and_prefixes(self, users: list[User]) -> None:
        bob, cat = str(users[1].pk), str(users[2].pk)
        form = ModelForm({"a-author": bob, "a-reviewers": [cat]}, contact_user=users[0], prefix="a")
        review = form.save()
        assert (review.author, review.reviewers) == (bob, [cat])
        shown = str(ModelForm(instance=review, contact_user=users[0], prefix="a"))
        assert f'name="a-author" value="{bob}" checked' in shown
        assert 'id="id_a-author" name="a-author-q"' in shown and 'for="id_a-author"' in shown
        assert "data-multiple" in shown and "Cat Ono" in shown


def request_of(user: User) -> Any:
    request = RequestFactory().get("/")
    request.user = user
    return request


class TestTag:
    def render(self, text: str, form: forms.Form, user: User) -> str:
        context = Context({"form": form, "request": request_of(user)})
        return Template("{% load messaging %}" + text).render(context)

    def test_assets_come_once(self, users: list[User]) -> None:
        text = "{% contact_autocomplete form.author %}{% contact_autocomplete form.reviewers %}"
        html = self.render(text, Form(contact_user=users[0]), users[0])
        assert html.count("data-people") == 2
        assert html.count("picker.js") == html.count("messaging.css") == 1

    @pytest.mark.parametrize(
        "text", ["{% contact_autocomplete form.name %}", "{% contact_autocomplete form %}"]
    )
    def test_other_fields_are_refused(self, users: list[User], text: str) -> None:
        class Other(forms.Form):
            name = forms.CharField()

        with pytest.raises(TemplateSyntaxError, match="ContactField"):
            self.render(text, Other(), users[0])


@pytest.fixture
def staff(users: list[User], settings: Settings) -> User:
    settings.ROOT_URLCONF = Urls
    ann = users[0]
    ann.is_staff = ann.is_superuser = True
    ann.save()
    return ann


class TestAdmin:
    def test_add_and_change(self, users: list[User], staff: User) -> None:
        bob, cat, eve = str(users[1].pk), str(users[2].pk), str(users[4].pk)
        client = client_of(staff)
        address = reverse("admin:accounts_review_add")
        page = client.get(address).content.decode()
        assert page.count("picker.js") == 1
        assert page.count("data-people") == 5  # three fields, an inline row, and the template of rows
        rows = {"remark_set-TOTAL_FORMS": "1", "remark_set-INITIAL_FORMS": "0"}
        refused = client.post(address, {"author": eve, **rows})
        assert "Nobody whom you can choose" in refused.content.decode()
        data = {"author": bob, "reader-q": "cat", "reviewers": [bob, cat], "remark_set-0-by": cat, **rows}
        assert client.post(address, data).status_code == 302
        review = Review.objects.get()
        assert (review.author, review.reader, review.reviewers) == (bob, cat, [bob, cat])
        assert [remark.by for remark in review.remark_set.all()] == [cat]
        address = reverse("admin:accounts_review_change", args=[review.pk])
        page = client.get(address).content.decode()
        assert page.count("Cat Ono") == 3
        data = {"author": bob, "reviewers-q": "", **rows, "remark_set-TOTAL_FORMS": "0"}
        assert client.post(address, data).status_code == 302
        review.refresh_from_db()
        assert (review.reader, review.reviewers) == (None, [])

    def test_each_request_has_its_own_user(self, users: list[User], staff: User) -> None:
        view = ReviewAdmin(Review, SITE)
        first, second = (view.get_form(request_of(user)) for user in users[:2])
        assert (first.contact_user, second.contact_user) == (users[0], users[1])
