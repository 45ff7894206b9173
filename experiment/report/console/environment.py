"""Environment on the console: requirements with verdicts, memory channels with roles."""

from __future__ import annotations

from rich.text import Text

from experiment.machine.environment import ChannelStatus, Environment, Requirement
from experiment.report.console.lines import Console
from experiment.text import format_bytes

_STYLES = {"ok": "green", "warn": "yellow", "missing": "bold red", "optional": "dim"}


def show_environment(out: Console, environment: Environment) -> None:
    """Print both tables and the conclusions."""
    t = out.t
    table = out.table(t("console.requirement"), t("console.found"), t("console.verdict"))
    for requirement in environment.requirements:
        table.add_row(*_requirement(out, requirement))
    out.console.print(table)
    channels = out.table(t("console.channel"), t("console.role"), t("console.channel_about"))
    for status in environment.channels:
        if status.role != "unused":
            channels.add_row(*_channel(out, status))
    out.console.print(channels)
    _show_unused(out, environment)
    _show_limits(out, environment)
    measured = t("brief.memory", channel=t(_channel_key(environment.primary)))
    out.line(t("console.problem", arm=t("brief.memory_name"), text=measured))


def _show_limits(out: Console, environment: Environment) -> None:
    """Print the limits of the control group."""
    limits = environment.system.cgroup
    if limits.reason is not None:
        out.line(out.t("console.cgroup_unknown", reason=out.t.message(limits.reason)), "dim")
    if limits.version is None:
        return
    none = out.t("console.no_limit")
    memory = none if limits.memory_bytes is None else format_bytes(limits.memory_bytes)
    cpus = none if limits.cpus is None else f"{limits.cpus:g}"
    out.line(out.t("console.cgroup", memory=memory, cpus=cpus), "dim")


def _show_unused(out: Console, environment: Environment) -> None:
    """Print channels that are unused on this device, one line per reason."""
    reasons: dict[str, list[str]] = {}
    for status in environment.channels:
        if status.role == "unused" and status.reason is not None:
            reasons.setdefault(out.t.message(status.reason), []).append(out.t(_channel_key(status)))
    for reason, names in reasons.items():
        listed = out.t("console.listed").join(names)
        out.line(out.t("console.unused", channels=listed, reason=reason), "dim")


def _requirement(out: Console, requirement: Requirement) -> tuple[str, Text, Text]:
    verdict = Text(out.t(f"console.verdict_{requirement.verdict}"), _STYLES[requirement.verdict])
    if requirement.advice is not None:
        verdict.append(out.t("console.advice", text=out.t.message(requirement.advice)), "")
    found = requirement.found
    return out.t(requirement.key), Text(found if found else out.t("console.not_found")), verdict


def _channel(out: Console, status: ChannelStatus) -> tuple[str, Text, Text]:
    role = status.role if status.usable else "unusable"
    style = "green" if role == "primary" else "dim" if role == "unusable" else ""
    why = out.t.message(status.reason) if status.reason else out.t(f"scope.{status.scope.value}")
    return out.t(_channel_key(status)), Text(out.t(f"console.role_{role}"), style), Text(why, style)


def _channel_key(status: ChannelStatus) -> str:
    return f"channel.{status.channel.value}"
