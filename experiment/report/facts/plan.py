"""Sentences and tables of a plan, and the command for vLLM."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from experiment.analysis.finding_text import listed
from experiment.analysis.metrics import METRICS
from experiment.report.facts.simulation_figures import rounding_note
from experiment.report.facts.texts import Cells
from experiment.report.facts.values import written
from experiment.simulate.log_differences import differences
from experiment.simulate.policies import DEFAULT_POLICIES
from experiment.text import DASH, Translator, format_bytes
from experiment.text.messages import Message, message
from kvsim.contiguous.reservation import POLICIES
from kvsim.sizing.request_memory import WAYS
from kvsim.sizing.vllm_capacity import GPU_BLOCK_MULTIPLE

Data = Mapping[str, Any]
# Share of the memory that vLLM reserves for a request, below which the held memory is reported.
_NOTABLE = 0.95
# vLLM asks that its share is free; a CUDA context takes some 0.5 GiB before.
_MOST_UTILISATION = 0.98


def rests_on(data: Data) -> Message:
    """Where layout, overhead and, if there are any, step times come from."""
    plan, check = data["plan"], data.get("check")
    is_checked = check is not None and check["verdict"] == "same"
    parts = [
        message("plan.rests.checked" if is_checked else "plan.rests.layout"),
        _memory_source(data),
    ]
    if plan["speed"]:
        source = data["setup"]["latency"]["source"]
        parts.append(message(f"plan.rests.times_{source}"))
        if source == "roofline":
            parts += _links(plan)
    return message("plan.rests.on", parts=listed(parts))


def _links(plan: Data) -> list[Message]:
    """What is assumed of the links between GPUs."""
    parts, stages = [], plan["stages"]
    if plan["gpus"] > stages:
        parts.append(message("plan.rests.links", rate=plan["peer_bandwidth"] / 1e9))
    if plan["engines"] > 1 or stages > 1:
        parts.append(message("plan.rests.no_links"))
    return parts


def _memory_source(data: Data) -> Message:
    budget = data["plan"]["budget"]
    if "log" in data:
        return message("plan.rests.memory_log")
    if budget["usable"] is None:
        return message("plan.rests.memory_given")
    return message("plan.rests.memory_modelled" if budget["assumed"] else "plan.rests.overhead")


def check_lines(check: Data) -> list[Message]:
    """One line if vLLM says the same; otherwise each figure that differs, or why it says none."""
    version, figures = check["vllm"], check["figures"]
    if check["verdict"] == "unknown":
        return [message("plan.check.unknown", reason=check["reason"])]
    if check["verdict"] == "different":
        lines = [
            message(
                "plan.check.differs", name=message(f"plan.check.{name}").model_dump(),
                version=version, **{side: _written(value) for side, value in both.items()},
            )
            for name, both in figures.items()
            if both["plan"] != both["vllm"]
        ]  # fmt: skip
        return lines + ([Message.model_validate(check["reason"])] if check["reason"] else [])
    if check["reason"]:
        return [message("plan.check.same_refusal", version=version)]
    names = ("blocks", "tokens", "concurrency")
    return [message("plan.check.same", version=version, **{n: figures[n]["vllm"] for n in names})]


def _written(value: Any) -> object:
    if isinstance(value, bool):
        return message(f"watch.{'yes' if value else 'no'}").model_dump()
    if isinstance(value, list):
        return " + ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def answer(data: Data) -> list[Message]:
    """The answer in some ten lines: a title, then what fits, why, and what vLLM will print."""
    plan, found = data["plan"], data["plan"]["capacity"]
    low, middle, high = (found[name] for name in ("low", "middle", "high"))
    budget, shape = plan["budget"], {"length": found["length"]}
    is_range = low["requests"] != high["requests"]
    lines = [
        title(plan),
        message("plan.answer.range", **shape, **_of("requests", low, middle, high))
        if is_range
        else message("plan.answer.exact", **shape, middle=middle["requests"]),
    ]
    if found["users"] is not None:
        lines.append(_users(plan, found))
        if found["remedy"]:
            lines.append(message("plan.answer.users_remedy", **found["remedy"]))
    if found["shortened"]:
        lines.append(message("plan.answer.shortened", positions=found["positions"], **shape))
    if found["shared_prefix"]:
        shared = {"tokens": found["shared_prefix"], "unshared": found["unshared"]}
        saves = found["unshared"] != middle["requests"]
        lines.append(message(f"plan.answer.prefix{'' if saves else '_none'}", **shared))
    paged, slabs = (plan["policies"][name]["running"] for name in ("paged", "slabs"))
    paged, slabs = (each and each * plan["engines"] for each in (paged, slabs))
    if data["trace"] is not None and slabs:
        lines.append(message("plan.answer.trace", running=paged, factor=paged / slabs))
    elif (
        paged and not (found["shared_prefix"] or plan["assumed"]) and paged > middle["requests"] + 2
    ):
        lines.append(message("plan.answer.growing", running=paged))
    if budget["usable"] is None:
        each = plan["layout"]["block_bytes"]
        shown = {name: plan[name] for name in ("blocks", "block_size")}
        lines.append(message("plan.answer.given", kv=budget["kv"], block_bytes=each, **shown))
    else:
        lines.append(
            message(
                "plan.answer.memory", low=budget["low"], middle=budget["kv"], high=budget["high"],
                **{name: budget[name] for name in ("usable", "weights", "overhead")},
            )
        )  # fmt: skip
    copies = data["setup"]["kv_copies"]  # a mean, if layers or stages differ
    if copies > 1 and copies == int(copies):
        lines.append(message("plan.answer.copies", copies=f"{copies:g}"))
    if plan["engines"] > 1:
        lines.append(message("plan.answer.engines", engines=plan["engines"], gpus=plan["gpus"]))
    if found["limit"] != "memory":
        shown = {"seqs": found["max_num_seqs"], "most": found["most"]}
        if found["most"]:
            lines.append(message(f"plan.answer.limit_{found['limit']}", **shown))
        else:
            lines.append(message(f"plan.answer.unmet_{found['limit']}"))
    if plan["speed"] and plan["speed"]["slo"] and found["limit"] not in ("ttft", "tpot"):
        lines.append(message("plan.answer.slo_met", most=found["most"]))
    lines += _speed(plan["speed"], data["load"])
    if plan["speed"]:
        lines += _assumed(plan)
    if plan["vllm_args"]:
        key = "printed" if low["tokens"] != high["tokens"] else "printed_exactly"
        lines.append(
            message(
                f"plan.answer.{key}", version=found["version"], length=plan["max_length"],
                concurrency=middle["concurrency"], **_of("tokens", low, middle, high),
            )
            if middle["starts"]
            else message("plan.answer.never_starts", length=plan["max_length"])
        )  # fmt: skip
        printed, memory = plan["printed"], plan["memory"]
        if memory and memory["groups"][-1] < _NOTABLE * printed["request_bytes"]:
            sizes = {"reserved": printed["request_bytes"], "held": memory["groups"][-1]}
            lines.append(message("plan.in_flight", **sizes))
        if budget["utilisation"] is not None and budget["utilisation"] > _MOST_UTILISATION:
            lines.append(message("plan.answer.not_free", utilisation=budget["utilisation"]))
        elif middle["starts"] and not low["starts"]:
            lines.append(message("plan.answer.may_not_start", length=plan["max_length"]))
    else:
        lines.append(message("plan.no_block_size", multiple=GPU_BLOCK_MULTIPLE))
    if plan["checkpoint"] not in (None, "fp8"):
        lines.append(message("plan.answer.checkpoint", kind=plan["checkpoint"]))
    if "check" in data:
        lines += check_lines(data["check"])
    return [*lines, rests_on(data)]


def title(plan: Data) -> Message:
    """The model and its GPUs."""
    gpus = plan["gpus"] * plan["engines"]
    return message("plan.page", model=plan["model"], gpus=gpus, gpu=plan["gpu"])


def _speed(speed: Data | None, load: Data | None) -> list[Message]:
    if speed is None:
        return []
    lines = []
    if load is not None:
        name = "over" if load["running"] is None else "idle" if load["running"] <= 1 else "under"
        lines.append(message(f"plan.{name}", **load))
    running, tokens = speed["running"], round(speed["tokens_per_s"])
    running = round(running, 1 if running < 10 and running % 1 else None)
    lines.append(message("plan.answer.speed", **{**speed, "running": running, "tokens": tokens}))
    if speed["usd_per_hour"] is not None:
        cost = {name: speed[f"usd_per_{name}"] for name in ("hour", "million_tokens")}
        lines.append(message("plan.answer.cost", **cost))
    return lines


def _assumed(timed: Data) -> list[Message]:
    """The prompt and the answer of a context for which times are computed."""
    if not timed["assumed"]:
        return []
    prompt, new = timed["assumed"]
    return [message("plan.answer.assumed", prompt=prompt, new=new)]


def rows_answer(data: Data) -> list[Message]:
    """What plans next to each other say: a title, and what the figures are."""
    users, model = data["users"], data["model"]
    rows = data.get("choices") or [row for rows in data["compared"].values() for row in rows]
    if "choices" in data:
        best = data["choices"][0]
        shape = {"model": model, "length": best["length"], "users": users or 1}
        shape |= {"gpus": best["gpus"], "gpu": best["gpu"], "rate": data["rate"]}
        key = "title" if users or data["rate"] is None else "rate"
        lines = [message(f"plan.choice.{key}", **shape)]
        lines.append(message(f"plan.choice.{'by_price' if _usd(best) else 'by_memory'}"))
        if _usd(best) and data["left_out"]:
            lines.append(message("plan.choice.left_out", n=data["left_out"]))
    else:
        row = next(row for row in rows if not row["reason"])
        shape = {"model": model, "length": row["length"]}
        gpu = row["gpu"] if "gpus" in data["compared"] else f"{row['gpus']} × {row['gpu']}"
        lines = [message("plan.compare.title", **shape, gpu=gpu)]
        if "block-size" in data["compared"]:
            lines.append(_best_block_size(data["compared"]["block-size"]))
    if any(row.get("limit", "memory") != "memory" for row in rows):
        lines.append(message("plan.compare.limited"))
    timed = next((row for row in rows if row.get("speed")), None)
    if timed:
        lines += _assumed(timed)
        lines.append(message("plan.answer.speed_source"))
    return lines


def _best_block_size(rows: Sequence[Data]) -> Message:
    """Which size holds the most requests, and how many fewer the largest one holds."""
    held = {row["value"]: 0 if row["reason"] else row["requests"]["middle"] for row in rows}
    best, largest = max(held, key=lambda size: held[size]), max(held)
    if len(set(held.values())) == 1:
        return message("plan.compare.block_size_any")
    fewer = 1 - held[largest] / held[best]
    return message("plan.compare.block_size", best=best, largest=largest, fewer=fewer)


def rows_tables(t: Translator, data: Data, most: int | None = None) -> list[Cells]:
    """A table of GPUs, or one for each option that is compared; ``most`` rows of the former."""
    if "choices" in data:
        rows = [(f"{row['gpus']} × {row['gpu']}", row) for row in data["choices"][:most]]
        return [_rows(t, t("plan.row.gpus"), rows)]
    return [
        _rows(t, f"--{axis}", [(_value(t, axis, row), row) for row in rows])
        for axis, rows in data["compared"].items()
    ]


def _value(t: Translator, axis: str, row: Data) -> str:
    if axis == "gpus" and not row["reason"]:
        return str(row["gpus"])
    return t("plan.row.as_given") if row["value"] is None else str(row["value"])


def _rows(t: Translator, first: str, rows: Sequence[tuple[str, Data]]) -> Cells:
    priced = any(_usd(row) for _, row in rows)
    heads = ["at_once", "usd_per_hour" if priced else "kv_cache", "tpot", "throughput"]
    cells = [
        [name, t("plan.row.nothing"), *[DASH] * (len(heads) - 1)]
        if row["reason"]
        else [name, *_figures(row)]
        for name, row in rows
    ]
    return Cells("", [first, *(t(f"plan.row.{name}") for name in heads)], cells)


def _figures(row: Data) -> list[str]:
    requests, speed = row["requests"], row["speed"] or {}
    low, middle, high = (f"{requests[name]:,}" for name in ("low", "middle", "high"))
    at_once = middle if low == high else f"{middle} ({low}–{high})"
    if row["limit"] != "memory":
        at_once = f"{row['most']:,} *"
    usd = _usd(row)
    return [
        at_once,
        format_bytes(row["kv"]["middle"]) if usd is None else written(usd, "mean"),
        written(speed.get("tpot_s"), "seconds"),
        written(speed.get("tokens_per_s"), "rate"),
    ]


def _usd(row: Data) -> float | None:
    speed = row.get("speed")
    return speed["usd_per_hour"] if speed else None


_WHERE = ("weights", "activations", "non_torch", "rest", "graphs", "kv")


def log_lines(log: Data) -> list[Message]:
    """Where each GiB went by a start-up log; if the start failed, why and what to change."""
    lines = []
    if log["starts"] > 1:
        lines.append(message("plan.log.starts", n=log["starts"]))
    total, share = log["total"], log["utilisation"]
    if total and share:
        usable = total * share
        lines.append(message("plan.log.share", total=total, utilisation=share, usable=usable))
    parts = [
        message("plan.log.part", name=message(f"sim.overhead.{name}").model_dump(), size=log[name])
        for name in _WHERE
        if log[name] is not None
    ]
    if parts:
        lines.append(message("plan.log.where", parts=listed(parts)))
    if log["failure"]:
        why = message(f"plan.log.failed_{log['failure']}", length=log["length"])
        ended = "stopped" if log["failure"] == "oom_serving" else "failed"
        lines.append(message(f"plan.log.{ended}", why=why.model_dump()))
        lines += [
            message("plan.log.remedy", place=place, text=_remedy(remedy).model_dump())
            for place, remedy in enumerate(log["remedies"], 1)
        ]
    elif log["tokens"]:
        lines.append(message("plan.log.printed", tokens=log["tokens"]))
    if log["differences"]:
        lines.append(differences(log["differences"]))
    return lines


def _remedy(remedy: Data) -> Message:
    text, *others = (
        message(f"plan.log.do_{each['name']}", value=each["value"])
        for each in (remedy, *remedy["others"])
    )
    for other in others:
        text = message("plan.log.both", first=text.model_dump(), second=other.model_dump())
    if remedy["tokens"] is None:
        return text
    shown = {"text": text.model_dump(), "tokens": remedy["tokens"]}
    if remedy["enough"] is not None:
        return message("plan.log.enough", **shown, length=remedy["enough"])
    return message("plan.log.gives", **shown)


def _of(name: str, low: Data, middle: Data, high: Data) -> dict[str, Any]:
    return {"low": low[name], "middle": middle[name], "high": high[name]}


def _users(plan: Data, found: Data) -> Message:
    """Whether the users fit: surely, perhaps or not."""
    users, cap = found["users"], found["max_num_seqs"] * plan["engines"]
    if found["limit"] in ("ttft", "tpot"):
        cap = min(cap, found["most"])
    low, high = (min(cap, found[name]["requests"]) for name in ("low", "high"))
    key = "fit" if users <= low else "perhaps" if users <= high else "too_many"
    middle = found["middle"]["requests"]
    share = users / middle if middle else None
    return message(f"plan.answer.users_{key}", users=users, share=share, high=high)


def sentences(data: Data) -> list[Message]:
    """The answer in sentences."""
    plan = data["plan"]
    paged, slabs = plan["policies"]["paged"], plan["policies"]["slabs"]
    messages = [
        message(
            "plan.holds",
            running=paged["running"],
            guaranteed=paged["guaranteed"],
            request=paged["request_bytes"],
        ),
        message(
            "plan.contiguous",
            length=plan["max_length"],
            slabs=slabs["guaranteed"],
            factor=paged["running"] / slabs["running"],
            running=paged["running"],
            needed=paged["running"] * slabs["request_bytes"],
            budget=plan["budget"]["kv"],
        )
        if slabs["running"]
        else message("plan.no_slab", length=plan["max_length"], needed=slabs["request_bytes"]),
    ]
    if plan["full"] is not None:
        source = message(f"plan.latency_{data['setup']['latency']['source']}")
        messages.append(message("plan.full_at", rate=plan["full"]["rate"], source=source))
    if plan["too_long"]:
        messages.append(message("plan.too_long", n=plan["too_long"], length=plan["max_length"]))
    if plan["left_out"]:
        messages.append(message("plan.left_out", n=plan["left_out"]))
    return messages


def plan_tables(t: Translator, plan: Data) -> list[Cells]:
    """Tables of policies, of a request's memory if layers differ, and of block sizes."""
    return [_policies(t, plan), _memory(t, plan) if plan["memory"] else _block_sizes(t, plan)]


def _policies(t: Translator, plan: Data) -> Cells:
    policies = plan["policies"]
    names = sorted(policies, key=DEFAULT_POLICIES.index)
    each = [policies[name] for name in names]
    paged = policies["paged"]["running"]
    rows = [
        [t("metric.running"), *(written(one["running"], "mean") for one in each)],
        [t("plan.row.guaranteed"), *(written(one["guaranteed"], "count") for one in each)],
        [t("plan.row.request"), *(format_bytes(one["request_bytes"]) for one in each)],
        [t("plan.row.needed"), *(format_bytes(one["request_bytes"] * paged) for one in each)],
        [
            t.message(METRICS["live_of_pool"].label),
            *(written(one["live"], "share") for one in each),
        ],
    ]
    notes = [t("plan.about")]
    if any(one["pool"] for one in each):
        shares = (written(_rounding(one, plan), "share") for one in each)
        rows.append([t("plan.row.rounding"), *shares])
    if note := rounding_note(names):
        notes.append(t.message(note))
    reasons = {name: one["reason"] for name, one in zip(names, each, strict=True)}
    notes += [f"{name}: {t(f'plan.reason.{why}')}" for name, why in reasons.items() if why]
    if POLICIES[0] in policies:
        notes.append(t("plan.no_guarantee", policy=", ".join(POLICIES)))
    return Cells(t("plan.title"), ["", *names], rows, notes=notes)


def _rounding(policy: Data, plan: Data) -> float | None:
    """Share of the pool lost to rounding up to a power of two while requests wait."""
    if policy["reason"]:
        return None
    pool, slots = policy["pool"], plan["budget"]["kv"] // plan["bytes_per_token"]
    return float(pool["rounding"] / slots) if pool else 0.0


def _memory(t: Translator, plan: Data) -> Cells:
    memory = plan["memory"]
    rows = [
        [f"{tokens:,}", *(format_bytes(memory[way][index]) for way in WAYS)]
        for index, tokens in enumerate(memory["tokens"])
    ]
    heads = [t("plan.memory.tokens"), *(t(f"plan.memory.{way}") for way in WAYS)]
    return Cells(t("plan.memory.table"), heads, rows, notes=[t("plan.memory.about")], name="memory")


def _block_sizes(t: Translator, plan: Data) -> Cells:
    rows = [
        [
            f"{demand['block_size']}"
            + (" *" if demand["block_size"] == plan["block_size"] else ""),
            written(demand["tail_share"], "share"),
            written(demand["blocks"], "mean"),
        ]
        for demand in plan["block_sizes"]
    ]
    heads = [t("metric.block_size"), t("metric.waste"), t("plan.block.blocks")]
    return Cells(t("plan.block.title"), heads, rows, notes=[t("plan.block.about")])


def serve_command(plan: Data) -> list[str]:
    """The command for vLLM, one string per option with its value; empty if there is none."""
    if not plan["vllm_args"]:
        return []
    _, model, *args = plan["vllm_args"]
    words = [f"vllm serve {shlex.quote(model)}"]
    for word in args:
        if word.startswith("--"):
            words.append(word)
        else:
            words[-1] += f" {word}"
    return words


def predicted(plan: Data) -> list[Message]:
    """Cache figures that vLLM will report, or why it does not support the block size."""
    printed, budget = plan["printed"], plan["budget"]
    if not plan["vllm_args"]:
        return [message("plan.no_block_size", multiple=GPU_BLOCK_MULTIPLE)]
    messages = [
        message(
            "plan.printed" if printed["starts"] else "plan.never_starts",
            tokens=printed["tokens"],
            length=plan["max_length"],
            concurrency=printed["max_concurrency"],
            blocks=printed["blocks"],
        )
    ]
    if budget["utilisation"] is not None:
        exact = budget["kv"] // plan["gpus"]
        messages.append(message("plan.if_same", kv=budget["kv"], exact=exact))
    return messages
