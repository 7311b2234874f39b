"""A page as a reader and as a browser meets it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

KNOWN = {
    "aria-label", "charset", "class", "colspan", "content", "href", "id", "lang", "name", "open", "role", "rowspan",
    "scope", "style", "tabindex", "title",
}  # fmt: skip
VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """The text of a page, its elements and its attributes. Elements that are not closed in order are `unclosed`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.words: list[str] = []
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.unclosed: list[str] = []
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.unclosed.append(tag)

    def handle_endtag(self, tag) -> None:
        if self.unclosed and self.unclosed[-1] == tag:
            self.unclosed.pop()
        else:
            self.unclosed.append(f"/{tag}")

    def handle_data(self, data) -> None:
        if not self.unclosed or self.unclosed[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def values(self, name: str) -> list[str]:
        return [value or "" for key, value in self.attributes if key == name]


def is_self_contained(page: Page) -> bool:
    """No script, nothing loaded, and no link but to this page and to pages beside it."""
    active = {"script", "img", "iframe", "link", "object", "embed", "form", "base", "svg"} & set(
        page.elements
    )
    unknown = {key for key, _ in page.attributes} - KNOWN  # handlers, sources, or a name that left its quotes
    away = [link for link in page.values("href") if not link.startswith("#") and re.match(r"\w+:|/", link)]
    sheet = "".join(re.findall("<style>(.*?)</style>", page.source))
    return not active and not unknown and not away and "url(" not in sheet and "@import" not in sheet


def is_well_formed(page: Page) -> bool:
    """Everything is closed in order, and no two elements share an id."""
    ids = page.values("id")
    return page.unclosed == [] and len(ids) == len(set(ids))
