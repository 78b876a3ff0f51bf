"""The page as a tree: reading it as XML fails on any tag that is not closed or any text that is not escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element


def tree(page: str) -> Element:
    """Parse the page; its only void elements are those in the head."""
    body = page.removeprefix("<!doctype html>\n")
    return ElementTree.fromstring(re.sub(r"<meta ([^>]*)>", r"<meta \1/>", body))


def words(element: Element) -> str:
    """Text of an element as a reader sees it, with ordinary spaces."""
    return " ".join("".join(element.itertext()).replace("\u00a0", " ").split())


def by_id(root: Element, key: str) -> Element:
    """The one element with this id."""
    (found,) = [entry for entry in root.iter() if entry.get("id") == key]
    return found


def tables(root: Element) -> dict[str, list[dict[str, str]]]:
    """Rows of every table under an element, by its name, each as heading to text."""
    found: dict[str, list[dict[str, str]]] = {}
    for table in root.iter("table"):
        headings = [words(cell) for cell in table.findall("thead/tr/th")]
        rows = [[words(cell) for cell in row] for row in table.findall("tbody/tr")]
        found[table.get("aria-label") or ""] = [dict(zip(headings, row, strict=True)) for row in rows]
    return found


def table_of(root: Element, *headings: str) -> list[dict[str, str]]:
    """The one table that has all these headings."""
    (found,) = [rows for rows in tables(root).values() if rows and set(headings) <= set(rows[0])]
    return found
