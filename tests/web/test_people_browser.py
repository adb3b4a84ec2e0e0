"""Choosing people in a real browser: in fields of forms and of the admin, after an @, among namesakes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.template import RequestContext, Template
from django.urls import path, reverse
from playwright.sync_api import Locator, Page, Route, expect
from pytest_django import Settings

from django_redis_messaging import Chat, Inbox, Mailbox
from django_redis_messaging.web.identity import Identity

from ..support import content_policies
from ..support.browser import (
    Visit,
    choose,
    expect_message,
    hold,
    open_page,
    reload,
    violations_now,
    wait_until,
)
from ..support.people import Member
from ..support.server import change
from .accounts.models import Review
from .conftest import Members
from .test_fields import Form, Urls, staff, users

__all__ = ["staff", "users"]  # fixtures


class TestFields:
    PAGE = """{% load messaging %}<!doctype html><html lang="en"><title>Review</title>
    <meta name="viewport" content="width=device-width">
    <main><h1>Review</h1><form method="post">{% csrf_token %}
    {% for field in form %}
      {{ field.label_tag }} {% contact_autocomplete field %} {{ field.errors }}
    {% endfor %}
    <button>Save</button></form><p id="saved">{{ form.cleaned_data }}</p></main></html>"""

    def choose(self, page: Page, label: str, text: str) -> None:
        """Choose the first suggestion, by keyboard."""
        field = page.get_by_role("combobox", name=label)
        field.fill(text)
        expect(page.get_by_role("option").first).to_be_visible()
        field.press("Enter")

    def test_enter_waits_for_the_suggestions_for_what_is_typed(
        self, visit: Visit, member: Members, ann: Member
    ) -> None:
        names = ["Carol Okafor", "Bob Lind", "Bob Long"]
        carol, lind, _ = (member(f"user{at}", first_name=name) for at, name in enumerate(names))
        page = visit(ann, "new")
        field, options = page.get_by_role("combobox", name="Search people"), page.get_by_role("option")
        chips, title = page.locator(".drm-chip"), page.get_by_label("Title")
        field.fill("car")
        expect(options).to_have_text(re.compile("Carol"))

        def enter(text: str) -> None:
            """Press Enter before the suggestions for the text are there: it chooses none of the others."""
            count, held = chips.count(), hold(page, "**/suggest/**")
            field.fill(text)
            field.press("Enter")
            wait_until(page, lambda: bool(held))
            expect(chips).to_have_count(count)
            held[0].continue_()
            page.unroute("**/suggest/**")

        enter("bob lind")
        expect(chips).to_have_text(re.compile("Bob Lind"))
        enter("bob")
        expect(page.get_by_text("Several people match “bob”.")).to_be_visible()
        expect(options).to_have_text(re.compile("Bob Long"))
        title.fill("Lunch")
        title.press("Enter")  # submits the form
        expect(options).to_have_text(re.compile("Bob Long"))
        expect(field).to_be_focused()
        expect(chips).to_have_count(1)
        assert Inbox(ann).chats() == []
        field.fill("carol")
        title.press("Enter")
        expect(page.locator("#drm-title")).to_have_text("Lunch")
        (chat,) = Inbox(ann).chats()
        assert sorted(chat.members) == sorted([str(ann), lind, carol])

    def test_a_new_chat_begins_with_the_keyboard(self, visit: Visit, member: Members, ann: Member) -> None:
        member("bob", first_name="Bob Lind")
        page = visit(ann, "chats", viewport={"width": 360, "height": 740})
        page.get_by_role("link", name="New chat").click()
        field = page.get_by_role("combobox", name="Search people")
        expect(field).to_be_focused()
        assert page.evaluate("[scrollX, scrollY, visualViewport.scale]") == [0, 0, 1]
        page.keyboard.type("bo")  # "b" elsewhere opens the notifications
        expect(page.get_by_role("option")).to_have_text(re.compile("Bob Lind"))
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Start chat").click()
        expect(page.locator("#drm-title")).to_have_text("Bob Lind")

    @pytest.mark.parametrize(
        ("name", "script", "found"),
        [("new", "picker.js", "[role=option]"), ("contacts", "contacts.js", "#drm-results li")],
    )
    def test_what_is_typed_before_the_script_is_there_is_found(
        self, visit: Visit, member: Members, ann: Member, name: str, script: str, found: str
    ) -> None:
        member("bob", first_name="Bob Lind")
        page = visit(ann)
        held = hold(page, f"**/{script}")
        page.goto(reverse(f"messaging:{name}"), wait_until="commit")
        page.locator("#drm-q").press_sequentially("bo")
        wait_until(page, lambda: bool(held))
        held[0].continue_()
        expect(page.locator(found)).to_contain_text(["Bob Lind"])

    def test_two_fields_of_a_form(self, visit: Visit, users: list[User], settings: Settings) -> None:
        def review(request: HttpRequest) -> HttpResponse:
            form = Form(request.POST or None, contact_user=request.user)
            form.is_valid()
            return HttpResponse(Template(self.PAGE).render(RequestContext(request, {"form": form})))

        patterns = (*Urls.urlpatterns, path("review/", review))
        settings.ROOT_URLCONF = type("SiteUrls", (), {"urlpatterns": patterns})
        page = visit(users[0], viewport={"width": 360, "height": 740})
        page.goto("/review/")
        for label in ("Author", "Reviewers"):
            for name in ("cat", "bob"):
                self.choose(page, label, name)
        expect(page.locator(".drm-chip")).to_have_count(3)  # one author
        assert violations_now(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        page.get_by_role("button", name="Remove Cat Ono").click()
        expect(page.get_by_role("status").nth(1)).to_have_text("Removed: Cat Ono")
        page.get_by_role("button", name="Save").click()
        bob = min(str(namesake.pk) for namesake in (users[1], users[3]))
        expect(page.locator("#saved")).to_have_text(f"{{'author': '{bob}', 'reviewers': ['{bob}']}}")
        expect(page.get_by_role("button", name="Remove Bob Ray")).to_have_count(2)

    def test_a_form_of_the_admin(
        self, visit: Visit, users: list[User], staff: User, settings: Settings
    ) -> None:
        page = visit(staff)
        settings.TEST_POLICY = ""  # inline rows of the admin have inline styles
        page.goto(reverse("admin:accounts_review_add"))
        self.choose(page, "Author", "cat")
        self.choose(page, "Reviewers", "bob")
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
        bob = min(str(namesake.pk) for namesake in (users[1], users[3]))
        assert (record.author, record.reviewers) == (cat, [bob])
        assert [remark.by for remark in record.remark_set.all()] == [cat, cat]


class TestCompletion:
    """Of names and emoji, while a message is written."""

    def test_by_keyboard_and_mouse(self, visit: Visit, member: Members, ann: Member) -> None:
        bob = member("bob", first_name="Bob", last_name="Lee")
        chat = Chat.create(ann, [bob], title="Trip")
        page = visit(ann, "room", chat.id)
        field, options = page.locator("#drm-body"), page.locator("#drm-completions [role=option]")
        field.press_sequentially("Hi @bo")
        expect(options.locator(".drm-person")).to_have_text(["Bob Lee bob"])
        expect(options).to_have_attribute("aria-selected", "true")
        field.press("Home")
        field.press("Enter")  # where the caret is now, nothing can be completed
        expect(options).to_have_count(0)
        expect(field).to_have_value("Hi @bo")
        field.press("End")
        field.press_sequentially("b")
        expect(options.locator(".drm-person")).to_have_text(["Bob Lee bob"])
        field.press("Enter")
        expect(field).to_have_value("Hi @Bob Lee ")
        field.press_sequentially(":roc")
        expect(options).to_have_text(["🚀 rocket"])
        field.press("Escape")
        expect(options).to_have_count(0)
        field.press_sequentially("k")
        options.click()
        expect(field).to_have_value("Hi @Bob Lee 🚀 ")
        field.press("Enter")
        expect(page.locator("#m1 .drm-mention")).to_have_text("@Bob Lee")
        field.press_sequentially("@bo")
        expect(options.locator(".drm-person")).to_have_text(["Bob Lee bob"])
        # Enter directly after more was typed: the suggestions that are still shown are not for that.
        field.evaluate("""field => {
          field.value += "th of us";
          field.dispatchEvent(new Event("input"));
          const init = { key: "Enter", bubbles: true, cancelable: true };
          field.dispatchEvent(new KeyboardEvent("keydown", init));
        }""")
        expect_message(page, "@both of us")
        # With Shift it is a line break, on a touch screen always.
        field.press_sequentially("@bo")
        expect(options).to_have_count(1)
        is_left = """field => {
          field.value += "b";
          field.dispatchEvent(new Event("input"));
          const init = { key: "Enter", shiftKey: true, bubbles: true, cancelable: true };
          return field.dispatchEvent(new KeyboardEvent("keydown", init));
        }"""
        assert field.evaluate(is_left)
        touch = visit(ann, "room", chat.id, has_touch=True, is_mobile=True)
        field = touch.locator("#drm-body")
        field.fill("")
        field.press_sequentially("@bo")
        expect(touch.locator("#drm-completions [role=option]")).to_have_count(1)
        field.press_sequentially("x")
        field.press("Enter")
        expect(field).to_have_value("@box\n")

    def test_of_two_members_with_one_name_the_chosen_one_is_notified(
        self, visit: Visit, member: Members, ann: Member
    ) -> None:
        bobs = [member(name, first_name="Bob", last_name="Lee") for name in ("bob1", "bob2")]
        page = visit(ann, "room", Chat.create(ann, bobs, "Hello", title="Trip").id)
        field, options = page.locator("#drm-body"), page.locator("#drm-completions [role=option]")
        field.press_sequentially("@bo")
        expect(options.locator(".drm-person")).to_have_text(["Bob Lee bob1", "Bob Lee bob2"])
        options.first.click()
        field.fill("")
        field.press_sequentially("@bo")
        options.last.click()
        expect(field).to_have_value("@Bob Lee ")
        reload(page)  # the choice is part of the draft
        choose(page, 1, "Edit")
        expect(field).to_have_value("Hello")
        field.press_sequentially(" @bo")
        options.first.click()  # an edit notifies nobody, and leaves the draft alone
        field.press("Enter")
        expect(page.locator("#m1 .drm-body")).to_have_text("Hello @Bob Lee")
        expect(field).to_have_value("@Bob Lee ")
        field.press("Enter")
        expect(page.locator("#m2 .drm-mention")).to_have_text("@Bob Lee")
        assert [Mailbox(bob).unread() for bob in bobs] == [0, 1]


class Faces(Identity):
    """Everybody has a picture; that of the second one is missing."""

    def pictures(self, ids: Iterable[str]) -> dict[str, str]:
        users = {str(user.pk): user.username for user in User.objects.filter(pk__in=ids)}
        return {
            member: "/missing.svg" if name == "ann2" else f"/faces/{name}.svg"
            for member, name in users.items()
        }


class TestNamesakes:
    """People of one name, and their pictures."""

    PICTURE = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><path fill="#c60" d="M0 0h8v8H0z"/></svg>'
    )
    #: whether a picture has been loaded, and the size of what is drawn in its place
    LOADED = "img => [img.complete && img.naturalWidth > 0, img.width, img.height]"

    def look(self, avatar: Locator) -> Any:
        return avatar.locator("img").evaluate(self.LOADED)

    def test_in_a_room_and_in_a_picker(self, visit: Visit, member: Members, settings: Settings) -> None:
        change(settings, IDENTITY=f"{__name__}.Faces")
        names = [("ann1", "Ann", "Lee"), ("ann2", "ANN", "LEE"), ("bob", "Bob", ""), ("cat", "Cat", "Mo")]
        one, two, bob, cat = (member(name, first_name=first, last_name=last) for name, first, last in names)
        chat = Chat.create(bob, [one, two, cat], title="Trip")
        chat.send(one, "Hello")
        chat.send(cat, "Hello")
        page = visit(bob, "contacts")
        settings.TEST_POLICY = content_policies.STRICT

        def answer(route: Route) -> None:
            route.fulfill(content_type="image/svg+xml", body=self.PICTURE)

        page.route("**/faces/*.svg", answer)
        open_page(page, "room", chat.id)
        authors = page.locator("#drm-log .drm-author")
        expect(authors).to_have_text(["Ann Lee", "Cat Mo"])
        chat.send(two, "Me, too")
        expect(authors).to_have_text(["Ann Lee (ann1)", "Cat Mo", "ANN LEE (ann2)"])
        Chat.direct(two, bob).send(two, "Only you")
        row = page.locator(".drm-row").filter(has_text="Only you")
        expect(row.locator(".drm-row-title")).to_have_text("ANN LEE (ann2)")
        row.locator("a").click()
        expect(page.locator("#drm-title")).to_have_text("ANN LEE (ann2)")
        page.go_back()
        avatars = page.locator("#drm-log .drm-avatar")
        expect(avatars).to_have_text(["AL", "CM", "AL"])
        wait_until(page, lambda: self.look(avatars.first) == self.look(avatars.nth(1)) == [True, 32, 32])
        assert not self.look(avatars.last)[0], "the initials are seen"
        page.locator("#drm-body").press_sequentially("@ann")
        expect(page.locator("#drm-completions .drm-person")).to_have_text(["Ann Lee ann1", "ANN LEE ann2"])

        open_page(page, "new")
        page.locator("#drm-q").press_sequentially("ann")
        options = page.get_by_role("option")
        expect(options.locator(".drm-person")).to_have_text(["Ann Lee ann1", "ANN LEE ann2"])
        expect(options.first.locator("img")).to_have_js_property("complete", True)
        assert self.look(options.first.locator(".drm-avatar")) == [True, 32, 32]
        options.last.click()
        expect(page.locator(".drm-chip bdi")).to_have_text("ANN LEE (ann2)")
