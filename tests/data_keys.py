"""A page's body, and whether each ``data-key`` in it leads to a value of a file."""

from __future__ import annotations

import json
import re
from typing import Any

import html5lib

_PATH = re.compile(r"\w+(?:\.\w+|\[[^\[\]]+\])*")
_NAMES = ("arm", "channel", "claim", "part", "id", "policy")


def body_of(page: str) -> Any:
    """The page's body, parsed."""
    return html5lib.parse(page, namespaceHTMLElements=False).find("body")


def name(node: Any) -> str:
    """The name of an element."""
    return str(node.tag).rsplit("}", 1)[-1]


def keyed_nodes(body: Any) -> list[Any]:
    """Elements with a path."""
    return [node for node in body.iter() if node.get("data-key")]


def lookup(path: str, data: Any) -> Any:
    """The value at a path; fails where there is none."""
    assert _PATH.fullmatch(path), path
    for field, named in re.findall(r"([^.\[\]]+)|\[([^\]]+)\]", path):
        if named and isinstance(data, list):
            data = next(one for one in data if named in [str(one.get(n)) for n in _NAMES])
        else:
            data = data[int(field) if isinstance(data, list) else field or named]
    return data


def assert_keys_lead(body: Any, data: Any, least: int) -> None:
    """Every path of a page leads to a value; a plain number on the page is that value, rounded."""
    nodes = keyed_nodes(body)
    assert len(nodes) >= least
    for node in nodes:
        value = lookup(node.get("data-key"), data)
        assert value is not None, node.get("data-key")
        shown = "".join(node.itertext()).replace(",", "")
        if re.fullmatch(r"\d+(\.\d+)?", shown) and isinstance(value, int | float):
            digits = len(shown.partition(".")[2])
            assert abs(float(shown) - value) <= 0.5001 * 10**-digits, (node.get("data-key"), shown)


def by_id(body: Any, name: str) -> Any:
    """The element with an id."""
    return next(node for node in body.iter() if node.get("id") == name)


def english(node: Any) -> str:
    """What a reader of English sees of an element."""
    if node is None or node.get("lang") == "zh":
        return ""
    inner = [node.text or "", *(english(child) + (child.tail or "") for child in node)]
    return " ".join("".join(inner).split())


def embedded(body: Any, name: str = "run-data") -> Any:
    """The data that a page carries."""
    return json.loads(by_id(body, name).text)
