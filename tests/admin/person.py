"""An operator who sees nothing but the pages: follows links by their words, ticks boxes, presses buttons."""

import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

from django.contrib.auth.models import User

from tests.admin.conftest import logged_in

_SUBMITS = ("submit", "image")


class Page(HTMLParser):
    """The links and the forms of a page, in its order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []  # (text, address)
        self.forms: list[Form] = []
        self._link: list[str] | None = None
        self._href = ""
        self._button = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a":
            self._link, self._href = [], given.get("href") or ""
        elif tag == "form":
            self.forms.append(Form(given.get("action") or ""))
        elif tag == "button" and self.forms:
            self._button = True
            self.forms[-1].submits.append("")
        elif tag == "input" and self.forms:
            self.forms[-1].add(given)

    def handle_data(self, data: str) -> None:
        if self._link is not None:
            self._link.append(data)
        if self._button:
            self.forms[-1].submits[-1] += data.strip()

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._link is not None:
            self.links.append((" ".join("".join(self._link).split()), self._href))
            self._link = None
        elif tag == "button":
            self._button = False


class Form:
    """What a form sends."""

    def __init__(self, action: str) -> None:
        self.action = action
        self.hidden: dict[str, list[str]] = {}
        self.boxes: list[str] = []  # values of the checkboxes of rows
        self.submits: list[str] = []  # what stands on its buttons

    def add(self, given: dict[str, str | None]) -> None:
        kind, name, value = given.get("type"), given.get("name"), given.get("value") or ""
        if kind in _SUBMITS:
            self.submits.append(value)
        elif kind == "hidden" and name:
            self.hidden.setdefault(name, []).append(value)
        elif kind == "checkbox" and name == "_selected_action":
            self.boxes.append(value)


class Person:
    """Somebody at the console; ``clicks`` counts links, boxes and buttons, and choices from lists."""

    def __init__(self, user: User) -> None:
        self.client = logged_in(user)
        self.clicks = 0
        self.open("/admin/")

    def open(self, path: str) -> None:
        self._see(self.client.get(path, follow=True))

    def follow(self, text: str) -> None:
        """Click on the first link with these words."""
        addresses = [address for words, address in self.page.links if words == text]
        assert addresses, (
            f"no link {text!r} on {self.path}; there are {[words for words, _ in self.page.links]}"
        )
        self.clicks += 1
        self.open(urljoin(self.path, addresses[0]))

    def press(self, label: str, **fields: str) -> None:
        """Fill in a form and press its button."""
        forms = [form for form in self.page.forms if label in form.submits]
        assert forms, f"no button {label!r} on {self.path}: {[form.submits for form in self.page.forms]}"
        self.clicks += 1
        self._post(forms[0], forms[0].hidden | fields)

    def give_to_all(self, action: str) -> None:
        """Tick all rows of a list, and choose an action for them."""
        (form,) = (form for form in self.page.forms if form.boxes)
        assert f'value="{action}"' in self.html, f"{action} is not offered"
        self.clicks += 3  # the box of all, the action, Go
        self._post(form, form.hidden | {"action": action, "_selected_action": form.boxes})

    @property
    def words(self) -> str:
        """What is on the page, without the site's frame."""
        content = self.html.split('id="content-start"')[-1]
        return " ".join(re.sub(r"<[^>]*>", " ", content).split())

    def _post(self, form: Form, fields: Any) -> None:
        self._see(self.client.post(urljoin(self.path, form.action), fields, follow=True))

    def _see(self, response: Any) -> None:
        assert response.status_code == 200, (response.status_code, response.request["PATH_INFO"])
        self.path = response.request["PATH_INFO"]
        if query := response.request["QUERY_STRING"]:
            self.path += f"?{query}"
        self.html = response.content.decode()
        self.page = Page(self.html)
