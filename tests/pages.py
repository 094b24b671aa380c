"""What a browser would make of a page: the tags it closes, the words it shows, the things it fetches or runs."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Collects what a browser would fetch or run, and whether tags are closed in order."""

    VOID = ("meta", "br", "path", "link", "img", "input", "hr")

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


class Tables(HTMLParser):
    """The words of all tables."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.depth, self.words = 0, ""
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.depth += tag == "table"

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "table"

    def handle_data(self, data: str) -> None:
        self.words += data if self.depth else ""


def external(source: str) -> list[str]:
    """What the page would fetch or run."""
    page = Page(source)
    found = [t for t in page.tags if t in ("script", "link", "img", "iframe", "object", "embed", "base", "form", "a")]
    found += [
        f"{n}={v}" for n, v in page.attributes if n in ("src", "href", "xlink:href", "style") or n.startswith("on")
    ]
    return found + re.findall(r"url\(|@import|https?://", source)
