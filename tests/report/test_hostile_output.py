"""What files of strangers say, in what other programs read: terminals, browsers, spreadsheets."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import os
import pty
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from data_keys import body_of, embedded
from pages import OpenPage
from rich.text import Text
from sample import make_record

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.events import EnvironmentProbed, decode, encode
from experiment.record.log import EVENTS_FILE, read_record
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.facts.csv_text import csv_text
from experiment.report.files.markdown import markdown
from experiment.report.files.markup import plain
from experiment.report.files.plots import draw_plots
from experiment.text import LANGUAGES, STEERING, Translator, readable
from experiment.text.errors import ExitCode

HOSTILE = "A\x1b]52;c;YWFh\x07B\x1b[2JC\u202eD\x9b1mE\x7f\u2066 @name https://evil.example"
FORMULAS = ("=cmd|x!A1", "+1", "-1+cmd|x!A1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "＝1")
# What a console of ours writes to a terminal: colours, and a line written again.
OUR_CODES = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|[0-9]*[AKG])|\r")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the texts of an event stand, but for plans and keys of messages."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        is_message = value.keys() == {"key", "params"}
        for name, each in value.items():
            if name != "plan" and not (is_message and name == "key"):
                yield from leaves(each, (*path, name))
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from leaves(each, (*path, place))


def changed(line: str, path: tuple[Any, ...]) -> str:
    event = json.loads(line)
    at = event
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] += HOSTILE
    return json.dumps(event)


def is_event(line: str) -> bool:
    try:
        return bool(decode(line))
    except ValueError:
        return False


def write_hostile(directory: Path) -> Path:
    """A run in which every text is hostile that may be any, and each arm has hostile lines too."""
    lines = []
    for event in make_record(directory).events:
        line = encode(event)
        for path in leaves(json.loads(line)):
            other = changed(line, path)
            if is_event(other):
                line = other
            elif path == ("arm",):
                lines.append(other)
        lines.append(line)
    (directory / EVENTS_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return write_hostile(tmp_path / "reports" / "run")


def test_every_kind_of_event_refuses_a_hostile_arm(hostile: Path) -> None:
    named = {"arm_started", "stage", "reading", "pool", "step", "arm_finished", "arm_failed"}
    lines = (hostile / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
    refused = {json.loads(line)["event"] for line in lines if not is_event(line)}
    assert named <= refused
    assert read_record(hostile).damaged_lines == sum(not is_event(line) for line in lines)


@pytest.mark.parametrize(
    "name", ["", "a b", "a/../b", "a\n", "=a", "-a", "\u202ea", "a" * 200, "臂"]
)
def test_what_is_no_name_makes_a_damaged_line(name: str) -> None:
    event = {"event": "arm_started", "t_ns": 1, "arm": "paged", "pid": 1}
    assert is_event(json.dumps(event))
    assert not is_event(json.dumps(event | {"arm": name}))


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_nothing_of_a_record_controls_a_terminal(
    hostile: Path, lang: str, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiment.report.files.write.draw_plots", lambda *_: ())
    monkeypatch.setenv("TERM", "xterm-256color")

    def show() -> None:
        assert main(["render", str(hostile), "--lang", lang]) == ExitCode.OK
        live = ConsoleReporter(lang)
        for event in read_record(hostile).events:
            if not isinstance(event, EnvironmentProbed):  # that of the sample is no whole one
                live.handle(event)
        live.console.print(HOSTILE, Text(HOSTILE), soft_wrap=True)

    printed = output_of(show, terminal)
    own = OUR_CODES.sub("", printed) if terminal else printed
    assert own.count("\\x1b]52;c;YWFh") > 5  # shown, and doing nothing
    assert STEERING.findall(own) == []


def output_of(show: Callable[[], None], terminal: bool) -> str:
    """All that a function prints to a terminal or into a pipe."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    read = bytearray()

    def drain() -> None:
        with suppress(OSError):  # the other end of a terminal is closed
            while part := os.read(ours, 65536):
                read.extend(part)

    reader = threading.Thread(target=drain)
    reader.start()
    out = os.fdopen(theirs, "w", encoding="utf-8")
    with out, redirect_stdout(out), redirect_stderr(out):
        show()
    reader.join()
    os.close(ours)
    return read.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hostile run with every file of its report."""
    directory = write_hostile(tmp_path_factory.mktemp("hostile") / "reports" / "run")
    assert main(["render", str(directory), "--lang", "en"]) == ExitCode.OK
    return directory


def test_no_file_of_a_report_has_control_characters(report: Path) -> None:
    found = evaluate(read_record(report))
    arms = [arm.model_copy(update={"arm": HOSTILE}) for arm in found.arms]
    results = found.model_copy(update={"arms": arms})
    texts = {"index": (report.parent / "index.html").read_text(encoding="utf-8")}
    texts |= {lang: markdown(results, lang) for lang in LANGUAGES}
    for name, draw in draw_plots(list, results, "en"):
        if name.endswith(".svg"):
            texts[name] = draw().decode()
    for file in report.rglob("*"):
        if file.suffix in (".html", ".svg", ".csv"):
            texts[str(file)] = file.read_text(encoding="utf-8")
    assert len(texts) == 11
    assert [name for name, text in texts.items() if STEERING.search(text)] == []


def test_a_browser_shows_them_escaped(open_page: OpenPage, report: Path) -> None:
    one = open_page(report / "report.html")
    shown = one.page.evaluate("document.documentElement.textContent")
    assert "\\x1b]52;c;YWFh" in shown
    assert STEERING.findall(shown) == []


@pytest.mark.parametrize("mark", ["", "1"])
def test_tables_of_the_page_are_the_files(
    hostile: Path, mark: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiment.report.files.write.draw_plots", lambda *_: ())
    monkeypatch.setenv("PAGEDKV_CSV_BOM", mark)
    assert main(["render", str(hostile), "--lang", "en"]) == ExitCode.OK
    capsys.readouterr()
    data = embedded(body_of((hostile / "report.html").read_text(encoding="utf-8")))
    assert len(data["tables"]) == 3
    for name, table in data["tables"].items():
        assert gzip.decompress(base64.b64decode(table)) == (hostile / name).read_bytes()


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula(text: str) -> None:
    made = csv_text([text, "n", "x"], [(text, -1, -0.5), (None, 2, None)])
    head, one, other = csv.reader(io.StringIO(made))
    escaped = readable(text).replace("\n", "\\n").replace("\t", "\\t")
    assert one == ["'" + escaped, "-1", "-0.5"]
    assert head[0] == one[0]
    assert other == ["", "2", ""]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("a;=1+1", "a;'=1+1"), ("a; -1", "a;' -1"), ("a\n=1", "a\\n=1"), ("a\t@x", "a\\t@x"),
        (" =1", "' =1"), ("a=1;b-2", "a=1;b-2"),
    ],
)  # fmt: skip
def test_no_separator_or_line_break_begins_a_formula(text: str, cell: str) -> None:
    made = csv_text(["n", "text"], [(1, text)])
    assert made.splitlines()[1:] == [f"1,{cell}"]


@pytest.mark.parametrize(
    "text",
    ["https://e.example/a", "HTTP://e.example", "www.e.example", "ask @name", "a@b.example", "#12"],
)
def test_markdown_makes_no_link_and_no_mention(text: str) -> None:
    made = unescape(plain(f"see {text}"))
    assert not re.search(r"(?i)://|www\.|@\w|#\d", made)
    assert made.replace("\u200b", "").replace("\\", "") == f"see {text}"


def test_an_index_of_somebody_else_stays(
    hostile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiment.report.files.write.draw_plots", lambda *_: ())
    index = hostile.parent / "index.html"
    index.write_text("<h1>MINE</h1>", encoding="utf-8")
    words = ["render", str(hostile), "--lang", "en"]
    assert main(words) == ExitCode.OK
    assert index.read_text(encoding="utf-8") == "<h1>MINE</h1>"
    said = capsys.readouterr().err
    assert said == Translator("en")("note.index_kept", path=str(index)) + "\n"
    index.unlink()
    for _ in ("new", "of an earlier run"):
        assert main(words) == ExitCode.OK
        assert capsys.readouterr().err == ""
    assert "MINE" not in index.read_text(encoding="utf-8")
