"""The report as one self-contained page in both languages.

Styles, script, charts and data are embedded, and a content security policy forbids loading
anything. Prompts and generated text are untrusted, and are always escaped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiment.analysis.experiment_results import ExperimentResult
from experiment.analysis.reconcile import ALLOWED
from experiment.analysis.resolved_config import resolved_config
from experiment.analysis.results import Results
from experiment.events import ModelPrepared, WorkloadReady
from experiment.events.sampling import FIRST_BEAM_ID
from experiment.record.log import RUN_FILE, Record
from experiment.replay.step_rows import StepRow
from experiment.report.facts import values
from experiment.report.facts.arm_figures import GAINS, has_blocks
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.lifelines import PHASES, lifelines
from experiment.report.facts.run_texts import engine_facts, explanations, token_sentences
from experiment.report.facts.series import Series, all_series, picture
from experiment.report.facts.texts import date_text
from experiment.report.html.answer import answer_context
from experiment.report.html.charts import small_bars, thinned, time_chart
from experiment.report.html.embed import safe_json
from experiment.report.html.svg import patterns
from experiment.report.html.templates import column_heads, page_assets, templates
from experiment.report.page import memory as html_memory
from experiment.report.page import parts as parts
from experiment.report.page.environment import environment_rows
from experiment.report.page.experiment import experiment_charts, experiment_text, focus_message
from experiment.report.page.latency import curve_swatch, curves, latency_rows
from experiment.report.page.life_chart import life_chart
from experiment.report.page.mapping import mapping_figure
from experiment.report.page.memory_bars import hero, memory_bars
from experiment.report.page.run_data import MAX_BYTES as MAX_DATA
from experiment.report.page.run_data import run_data
from experiment.report.page.simulator_check import LINES, check_chart, check_rows
from experiment.report.page.slotmap import MapOf, map_of, slot_map, states_of
from experiment.report.page.what_if import what_if
from experiment.report.player.stage import MAX_BYTES as MAX_FILMS
from experiment.report.player.stage import stage
from experiment.text.messages import Message, arm_message, message
from kvsim.accounting.ledger import SlotState
from kvsim.accounting.slots import ALLOCATED_STATES, OTHER_STATES

_SECTIONS = ("player", "run_what_if", "claims", "time", "requests", "checks", "about")


def sections(results: Results, has_what_if: bool) -> dict[str, Message]:
    """Titles of a run's sections after the verdict, by the id of the heading and the template.

    An experiment has findings instead of claims.
    """
    titles = {"player": "player.title", "run_what_if": "what_if.title"}
    without = {"claims"} if results.experiment else set[str]()
    without |= set() if has_what_if else {"run_what_if"}
    return {
        name: message(titles.get(name, f"report.{name}.title"))
        for name in _SECTIONS
        if name not in without
    }


# Maximum size of a page. If larger, embedded data are reduced, with a note.
_MAX_PAGE = 1_480_000
_MAX_TRIES = 6
_TABLE_ROWS = 120  # of all arms together
_TERMS = (
    "arm", "slot", "slab", "block", "block_table", "reserved", "allocated", "live", "wasted",
    "peak", "free",
)  # fmt: skip


# Charts whose limits are explained, and their names.
_EXPLAINED = {
    "peak": "report.shows.peak_name",
    "time": "report.time.title",
    "player": "report.shows.player_name",
    "life": "report.requests.title",
    "readings": "report.shows.readings_name",
    "latency": "report.shows.latency_name",
    "experiment": "report.shows.experiment_name",
    "simulator": "simulator.title",
}


def report_html(
    record: Record, results: Results, lang: str, series: list[Series] | None = None
) -> str:
    """Render the page; ``lang`` is its initial language.

    ``series`` is the result of :func:`all_series` if available, which replays the log.
    """
    b = Bilingual(lang)
    series = all_series(record) if series is None else series
    name = "experiment.html.j2" if results.experiment else "report.html.j2"
    template = templates(lang).get_template(name)
    context = _context(b, record, results, series)
    rooms = MAX_FILMS, MAX_DATA
    for _ in range(_MAX_TRIES):
        player, embedded = stage(b, record, rooms[0]), run_data(record, results, series, rooms[1])
        data = safe_json(embedded)
        page: str = template.render(
            context, player=player, data=data, left_out=embedded["left_out"]
        )  # fmt: skip
        over = len(page.encode()) - _MAX_PAGE
        if over <= 0:
            break
        films, rest = player.size if player else 0, len(data.encode())
        left = max(0.0, 1 - over / (films + rest or 1))
        rooms = int(min(rooms[0], films) * left), int(min(rooms[1], rest) * left)
    return page


def _context(
    b: Bilingual, record: Record, results: Results, series: list[Series]
) -> dict[str, Any]:
    """Variables of the template, without embedded data."""
    workload = record.first(WorkloadReady)
    what, second = what_if(b, record, results), parts.second_part_table(results)
    return {
        "lang": b.lang,
        "record": record,
        "results": results,
        **page_assets(
            "words.js",
            "player_state.js",
            "player_draw.js",
            "player_side.js",
            "player.js",
            "sliders.js",
            "run_what_if.js",
            styles=("player.css", "what_if.css"),
            stacked=column_heads(
                b,
                arm=[arm_message(arm.arm) for arm in results.arms],
                gain=[*GAINS.values()],
                second=[*second.columns, GAINS["factor"]] if second else [],
            ),
        ),
        "sections": sections(results, has_what_if=what is not None),
        "what_if": what,
        "second_part": second,
        "first_requests": len(workload.requests) if workload else None,
        "began": _began(record),
        "hero": hero(results),
        "subject": parts.subject(record, results),
        "conditions": parts.conditions(record),
        # Functions for the figures of a run.
        "arm_message": arm_message,
        "message": message,
        "engine_facts": engine_facts,
        "has_blocks": has_blocks,
        "token_sentences": token_sentences,
        "one_reason": parts.one_reason,
        "curve_swatch": curve_swatch,
        **_pictures(b, record, results, series),
        **_tables(record, results, series),
        **_experiment(b, record, results.experiment),
    }


def _experiment(b: Bilingual, record: Record, result: ExperimentResult | None) -> dict[str, Any]:
    """Variables of ``experiment.html.j2``."""
    if result is None:
        return {"experiment": None}
    charts = experiment_charts(b, result)
    return {
        **answer_context(b, lambda t: experiment_text(t, result, _began(record)), charts),
        "experiment": result,
        "focus": focus_message(result),
        "file": RUN_FILE,
    }


def _began(record: Record) -> str:
    return date_text(record.started.wall_ns, record.started.utc_offset_s)


def _pictures(
    b: Bilingual, record: Record, results: Results, series: list[Series]
) -> dict[str, Any]:
    maps = _maps(record, results)
    lives, most = lifelines(record), parts.most_requests(results)
    prefill = {one.arm: one.prefill for one in lives}
    latency_curves = curves(b, results)
    simulator = [(arm, check_chart(b, arm)) for arm in results.arms if arm.simulator]
    return {
        "patterns": patterns(),
        "bars": memory_bars(results.arms, series),
        "peak_states": _peak_states(results),
        "agreement_dots": html_memory.dots(b, results),
        "map": slot_map(b, maps) if maps else None,
        "map_states": states_of(maps),
        "over_time": time_chart(b, series, prefill, by_step=False) if series else None,
        "over_steps": time_chart(b, series, prefill, by_step=True) if series else None,
        "thinned": thinned(series),
        "mapping": _mapping(b, record, results),
        "simulator": simulator,
        "check_rows": check_rows,
        "simulator_lines": LINES,
        "lives_hidden": any(len(one.lines) > most for one in lives),
        "lives_unable": any(not has_blocks(one.arm) for one in lives),
        "lives_shown": [replace(one, lines=one.lines[:most]) for one in lives],
        "life": life_chart(b, lives) if lives else None,
        "beams": any(line.request >= FIRST_BEAM_ID for one in lives for line in one.lines),
        "first_beam": FIRST_BEAM_ID,
        "phases": [p for p in PHASES if any(line.seconds(p) for o in lives for line in o.lines)],
        "latency_curves": latency_curves,
        "explained": {
            name: label
            for name, label in _EXPLAINED.items()
            if (name != "latency" or latency_curves)
            and (name != "experiment" or results.experiment)
            and (name != "simulator" or simulator)
        },
        "claim_bars": {
            claim.id: (
                small_bars(b, claim.id, bars, "wasted" if claim.id == "waste" else "live"),
                bars,
            )
            for claim in results.claims
            if (bars := parts.claim_bars(claim, results))
        },
    }


def _maps(record: Record, results: Results) -> list[MapOf]:
    workload = record.first(WorkloadReady)
    maps = []
    for arm in results.arms:
        snapshot = picture(record, arm.arm, arm.peak.step) if arm.peak else None
        one = map_of(arm.arm, snapshot, workload.max_length) if snapshot and workload else None
        if one:
            maps.append(one)
    return maps


def _mapping(b: Bilingual, record: Record, results: Results) -> dict[str, Any] | None:
    """Diagram of the first arm with a logged mapping."""
    arm = next((arm for arm in results.arms if arm.mapping), None)
    if arm is None or arm.mapping is None or not arm.block_size:
        return None
    snapshot = picture(record, arm.arm, arm.mapping["step"])
    holder = snapshot.holders.get(arm.mapping["request"]) if snapshot else None
    fits = holder is not None and arm.mapping["logical"] < len(holder.table)
    return {
        "arm": arm.arm,
        "block": arm.block_size,
        "figure": mapping_figure(b, arm.mapping, snapshot) if snapshot and fits else None,
        **arm.mapping,
    }


def _tables(record: Record, results: Results, series: list[Series]) -> dict[str, Any]:
    environment, model = results.environment or {}, record.first(ModelPrepared)
    most = parts.most_requests(results)
    return {
        "comparison": parts.comparison(results),
        "growing": parts.growing(results),
        "digests": parts.digests(results, most),
        "not_measured": parts.not_measured(results),
        "agree": html_memory.summary(results),
        "costly": html_memory.costly(results),
        "latency": latency_rows(results),
        "channels": html_memory.channels(results) if html_memory.sentences(results) else [],
        "agreement": html_memory.sentences(results),
        "allowed": ALLOWED,
        "memory_parts": html_memory.parts(results),
        "watched": html_memory.watched(results),
        "steps": [(one.arm, _step_rows(one, _TABLE_ROWS // len(series))) for one in series],
        "slot_bytes": model.slot_bytes if model else None,
        "requests": {arm.arm: parts.requests(record, arm, most) for arm in results.arms},
        "most_requests": most,
        "readings": {arm.arm: parts.readings(record.started, arm) for arm in results.arms},
        "explanations": explanations(results),
        "terms": [*dict.fromkeys((*_TERMS, *(state.value for state in _peak_states(results))))],
        "environment": environment_rows(results.environment),
        "requirements": _requirements(environment.get("requirements")),
        "config": values.config_text(resolved_config(record)),
        "command": parts.repeat_command(record.started.command),
        "numbered": values.has_invisible(record.started.command),
        "gain_columns": GAINS,
    }


def _peak_states(results: Results) -> list[SlotState]:
    """States that occur at any arm's peak."""
    peaks = [arm.peak for arm in results.arms if arm.peak]
    states = (*ALLOCATED_STATES, *OTHER_STATES)
    return [state for state in states if any(getattr(at, state.value) for at in peaks)]


def _step_rows(one: Series, most: int) -> list[tuple[StepRow, float]]:
    """Rows of an arm's steps, and their start times."""
    begun = {row.step: edge for row, edge in zip(one.rows, one.edges, strict=False)}
    return [(row, begun[row.step]) for row in one.thinned(most).rows]


def _requirements(value: Any) -> list[dict[str, Any]]:
    """Rows of the environment check, with their places in the log."""
    return [
        {**row, "place": place}
        for place, row in enumerate(value if isinstance(value, list | tuple) else ())
        if isinstance(row, dict) and row.get("key") and row.get("verdict")
    ]
