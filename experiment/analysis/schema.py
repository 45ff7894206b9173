"""Generate the schema of ``run.json``: ``python -m experiment.analysis.schema``.

It is derived from the classes of config, environment and results; docs/record.md explains them.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict

from experiment.analysis.results import Results
from experiment.config.schema import Config
from experiment.machine.environment import Environment

_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


class RunResults(Results):
    """What the run found; ``environment`` is what the machine had."""

    environment: Environment | None  # type: ignore[assignment] # kept as it was written


class RunSummary(BaseModel):
    """The whole file. ``wall_ns`` is Unix time in nanoseconds, ``utc_offset_s`` that of the clock.

    ``command`` are the words behind the program's name; ``config`` is the resolved one, see
    :mod:`experiment.analysis.resolved_config`. ``files`` are sha256 sums of what lies beside it.
    """

    model_config = ConfigDict(extra="forbid", title="run.json of PagedKV Lab")

    schema_version: int
    version: str
    wall_ns: int
    utc_offset_s: int
    command: list[str]
    config: Config
    results: RunResults
    files: dict[str, str] = {}


def schema() -> dict[str, Any]:
    """The JSON schema, draft 2020-12; additional properties are not allowed."""
    generated = RunSummary.model_json_schema(mode="serialization")
    for part in (generated, *generated["$defs"].values()):
        if "properties" in part:
            part.setdefault("additionalProperties", False)
    return {"$schema": _SCHEMA, **generated}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1, ensure_ascii=False, sort_keys=True))
