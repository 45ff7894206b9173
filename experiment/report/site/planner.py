"""The planner: model, GPU and number of GPUs from lists, and the sliders of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiment.report.html.embed import safe_json
from experiment.report.pages.plan import what_if_context
from experiment.text import LANGUAGES, catalogue
from kvsim.sizing.overhead import ServerOptions

Data = Mapping[str, Any]
STYLES = ("what_if.css",)
SCRIPTS = ("words.js", "sliders.js", "what_if.js", "planner.js")
_USERS = [quarters << power for power in range(8) for quarters in (4, 5, 6, 7)]


def planner_context(data: Data) -> dict[str, Any]:
    """Variables of the template, ``data`` of :func:`experiment.simulate.planner.planner`."""
    users = [1, 2, 3, *_USERS, 1024]
    model, gpu, gpus = data["start"]
    first = data["plans"][model][gpu][data["counts"].index(gpus)]
    positions = {
        "context": data["context"][model],
        "users": users,
        "block_size": [*map(int, first["layouts"])],
        "kv_dtype": data["kv_dtype"],
    }
    start = first["start"] | {"users": max(n for n in users if n <= first["start"]["users"])}
    keys = {"plan.answer.memory", *_keys(data["plans"])}
    texts = {lang: {key: catalogue(lang)[key] for key in sorted(keys)} for lang in LANGUAGES}
    utilisation = f"{ServerOptions().utilisation():g}"
    return {
        "choices": {"model": data["plans"], "gpu": data["gpus"], "gpus": data["counts"]},
        **what_if_context({"positions": positions, "start": start}),
        "data": safe_json(
            {"planner": {**data, "users": users, "texts": texts, "utilisation": utilisation}}
        ),
    }


def _keys(value: Any) -> set[str]:
    """Keys of all messages within plain values."""
    if isinstance(value, dict):
        own = {value["key"]} if isinstance(value.get("key"), str) else set[str]()
        return own.union(*map(_keys, value.values()))
    return set[str]().union(*map(_keys, value)) if isinstance(value, list) else set()
