"""Fields to choose people in a real browser: by keyboard, several on a page, and in the admin."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.template import RequestContext, Template
from django.urls import path, reverse
from playwright.sync_api import Page, Route, expect
from pytest_django import Settings

from django_redis_messaging import Inbox

from .accounts.models import Review
from .test_browser import Visit, visit
from .test_fields import Form, Urls, staff, users
from .test_frame_browser import violations_now
from .test_room_browser import wait_until

__all__ = ["staff", "users", "visit"]  # fixtures

PAGE = """{% load messaging %}<!doctype html><html lang="en"><title>Review</title>
<meta name="viewport" content="width=device-width">
<main><h1>Review</h1><form method="post">{% csrf_token %}
{% for field in form %}{{ field.label_tag }} {% contact_autocomplete field %} {{ field.errors }}{% endfor %}
<button>Save</button></form><p id="saved">{{ form.cleaned_data }}</p></main></html>"""


def review(request: HttpRequest) -> HttpResponse:
    form = Form(request.POST or None, contact_user=request.user)
    form.is_valid()
    return HttpResponse(Template(PAGE).render(RequestContext(request, {"form": form})))


class SiteUrls(Urls):
    urlpatterns = (*Urls.urlpatterns, path("review/", review))


def choose(page: Page, label: str, text: str) -> None:
    """Choose the first suggestion, by keyboard."""
    field = page.get_by_role("combobox", name=label)
    field.press_sequentially(text)
    expect(page.get_by_role("option").first).to_be_visible()
    field.press("Enter")


def test_enter_waits_for_the_suggestions_for_what_is_typed(visit: Visit, person: Callable[..., User]) -> None:
    ann = person("ann")
    names = ["Carol Okafor", "Bob Lind", "Bob Long"]
    carol, lind, _ = (str(person(f"user{at}", first_name=name).pk) for at, name in enumerate(names))
    page = visit(ann, "new")
    field, options = page.get_by_role("combobox", name="Search people"), page.get_by_role("option")
    chips, title = page.locator(".drm-chip"), page.get_by_label("Title")
    field.fill("car")
    expect(options).to_have_text(re.compile("Carol"))
    held: list[Route] = []
    page.route("**/suggest/**", lambda route: held.append(route))
    field.fill("bob lind")
    field.press("Enter")
    wait_until(page, lambda: bool(held))
    expect(chips).to_have_count(0)  # not Carol
    held[0].continue_()
    page.unroute("**/suggest/**")
    expect(chips).to_have_text(re.compile("Bob Lind"))
    field.fill("bob")
    field.press("Enter")
    expect(page.get_by_text("Several people match “bob”.")).to_be_visible()
    expect(options).to_have_text(re.compile("Bob Long"))
    title.fill("Lunch")
    title.press("Enter")  # submits the form
    expect(options).to_have_text(re.compile("Bob Long"))
    expect(field).to_be_focused()
    expect(chips).to_have_count(1)
    assert Inbox(str(ann.pk)).chats() == []
    field.fill("carol")
    title.press("Enter")
    expect(page.locator("#drm-title")).to_have_text("Lunch")
    (chat,) = Inbox(str(ann.pk)).chats()
    assert sorted(chat.members) == sorted([str(ann.pk), lind, carol])


def test_two_fields_of_a_form(
    visit: Visit, person: Callable[..., User], users: list[User], settings: Settings
) -> None:
    settings.ROOT_URLCONF = SiteUrls
    page = visit(users[0], viewport={"width": 360, "height": 740})
    page.goto("/review/")
    for name in ("cat", "bob"):
        choose(page, "Author", name)
    for name in ("cat", "bob"):
        choose(page, "Reviewers", name)
    expect(page.locator(".drm-chip")).to_have_count(3)  # one author
    assert violations_now(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.get_by_role("button", name="Remove Cat Ono").click()
    expect(page.get_by_role("status").nth(1)).to_have_text("Removed: Cat Ono")
    page.get_by_role("button", name="Save").click()
    bob = users[1].pk
    expect(page.locator("#saved")).to_have_text(f"{{'author': '{bob}', 'reviewers': ['{bob}']}}")
    expect(page.get_by_role("button", name="Remove Bob Ray")).to_have_count(2)


def test_a_form_of_the_admin(visit: Visit, users: list[User], staff: User, settings: Settings) -> None:
    page = visit(staff)
    settings.TEST_POLICY = ""  # inline rows of the admin have inline styles
    page.goto(reverse("admin:accounts_review_add"))
    choose(page, "Author", "cat")
    choose(page, "Reviewers", "bob")
    page.get_by_text("Add another Remark").click()
    for row in (0, 1):
        field = page.locator(f"#id_remark_set-{row}-by")
        field.press_sequentially("cat")
        expect(page.get_by_role("option", name="Cat Ono")).to_be_visible()
        field.press("Enter")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert [one for one in violations_now(page) if "drm-" in one] == []
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".success")).to_be_visible()
    record, cat = Review.objects.get(), str(users[2].pk)
    assert (record.author, record.reviewers) == (cat, [str(users[1].pk)])
    assert [remark.by for remark in record.remark_set.all()] == [cat, cat]
