"""``gpucheck``: a part that fails, crashes or hangs is reported, and the others report as well."""

from __future__ import annotations

import signal
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import html5lib
import pytest
from data_keys import assert_keys_lead, body_of
from part_talks import TOKEN

from experiment.commands.main import main
from experiment.gpucheck import parts
from experiment.gpucheck.archive import ARCHIVE
from experiment.gpucheck.parts import Part
from experiment.gpucheck.result import (
    FILE,
    INTERRUPTED,
    NEEDS_GPU,
    PAGE,
    GpuCheck,
    PartResult,
    read_result,
)
from experiment.process.child import Child
from experiment.report.pages.gpucheck import gpucheck_html
from experiment.report.pages.index_entries import entries
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import ExitCode
from experiment.text.messages import message

HERE = Path(__file__).parent
PERSON = "alicewonder"
# Names of real parts, so that the catalogues have them. The first one starts without knowing the
# machine: its process has to find out by itself that there is no GPU.
PARTS = (
    Part("graphs", "experiment.gpucheck.graphs", 1.0, needs_gpu=True),
    Part("environment", "part_machine", 1.0),
    Part("kernels", "part_broken_kernel", 1.0, uses_triton=True),
    Part("tokens", "part_hangs", 0.3),
    Part("memory", "part_crashes", 1.0),
    Part("swap", "experiment.gpucheck.swap", 1.0, needs_gpu=True),
    Part("walkthrough", "part_talks", 1.0),
    Part("speed", "experiment.gpucheck.speed", 1.0, needs_gpu=True),
)
MINUTES = "2.5"


@dataclass
class Ran:
    """One whole command."""

    code: int
    directory: Path
    seconds: float

    @property
    def data(self) -> GpuCheck:
        return read_result(self.directory)

    def part(self, name: str) -> PartResult:
        return next(part for part in self.data.parts if part.part == name)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The command with parts of which three end badly, by a person with a home and a token."""
    home = tmp_path_factory.mktemp("homes") / PERSON
    home.mkdir()
    directory = tmp_path_factory.mktemp("reports") / "reports" / "gpucheck-1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE / "parts"))
        patch.setenv("HOME", str(home))
        patch.setenv("USER", PERSON)
        patch.setenv("COLUMNS", "80")
        patch.setattr(parts, "PARTS", PARTS)
        begin = time.monotonic()
        words = ["gpucheck", "--minutes", MINUTES, "--lang", "en", "--ascii"]
        code = main([*words, "--out", str(directory)])
        seconds = time.monotonic() - begin
    return Ran(code, directory, seconds)


def test_a_broken_kernel_fails_and_the_others_report(ran: Ran) -> None:
    assert ran.code == ExitCode.INCOMPLETE
    kernels = ran.part("kernels")
    assert kernels.verdict == "fail"
    assert kernels.interpreted
    assert kernels.reason.key == "gpucheck.failed"
    wrong = {check.id for check in kernels.checks if check.passed is False}
    assert "float32.dim16.group4.decode" in wrong
    assert "float32.poison.values" not in wrong
    assert [part.part for part in ran.data.parts] == [part.name for part in PARTS]
    assert ran.part("environment").verdict == ran.part("walkthrough").verdict == "pass"


def test_a_part_that_hangs_is_ended_at_its_limit(ran: Ran) -> None:
    hung = ran.part("tokens")
    assert hung.verdict == "fail"
    assert hung.reason.key == "gpucheck.over_limit"
    assert hung.limit_s is not None
    assert hung.seconds is not None
    assert hung.limit_s <= hung.seconds < hung.limit_s + 20
    assert ran.seconds < 60 * float(MINUTES) + 20


def test_a_part_that_crashes_is_reported(ran: Ran) -> None:
    crashed = ran.part("memory")
    assert crashed.verdict == "fail"
    assert crashed.reason == message("failure.signal", signal="SIGSEGV")


def test_parts_that_need_a_gpu_are_skipped_and_never_passed(ran: Ran) -> None:
    for name in ("graphs", "swap", "speed"):
        part = ran.part(name)
        assert (part.verdict, part.reason) == ("skipped", NEEDS_GPU)
        assert not part.checks
    assert ran.part("graphs").seconds is not None  # its process found no GPU
    assert ran.part("swap").seconds is None  # the machine was known by then


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_page_holds_both_languages_and_each_number_names_its_place(lang: str, ran: Ran) -> None:
    text = gpucheck_html(ran.data, lang)
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    assert parser.parse(text).get("lang") == lang
    assert not parser.errors
    words = "".join(body_of(text).itertext()).replace("\u00a0", " ")
    for each in LANGUAGES:
        t = Translator(each)
        assert t.message(ran.part("tokens").reason) in words
        assert t("gpucheck.about_interpreted") in words
        assert t("gpucheck.part_walkthrough") in text
    said = html5lib.parseFragment("<div></div>", namespaceHTMLElements=False)[0]
    said.extend(node for node in body_of(text).iter("div") if node.get("lang") == lang)
    assert_keys_lead(said, ran.data.model_dump(mode="json"), least=10)
    assert "http://" not in text
    assert "https://" not in text


def test_the_archive_holds_result_page_and_logs_and_nothing_private(ran: Ran) -> None:
    with tarfile.open(ran.directory / ARCHIVE) as tar:
        files = {one.name: tar.extractfile(one).read().decode() for one in tar}  # type: ignore[union-attr]
        owners = {(one.uid, one.gid, one.uname, one.gname) for one in tar}
    assert owners == {(0, 0, "", "")}
    assert {f"gpucheck/{name}" for name in (FILE, PAGE)} < files.keys()
    assert {f"gpucheck/logs/{name}.log" for name in ("kernels", "tokens", "walkthrough")} < {*files}
    assert "gpucheck/logs/walkthrough/paged.log" in files
    for name, text in files.items():
        assert PERSON not in text, name
        assert TOKEN not in text, name
    for name in ("walkthrough.log", "walkthrough/paged.log"):
        assert "~/models of <user> with ***" in files[f"gpucheck/logs/{name}"]


def test_the_index_lists_it(ran: Ran) -> None:
    (entry,) = entries(ran.directory.parent)
    assert (entry.kind, entry.verdict) == ("gpucheck", ran.data.headline)


def test_what_was_found_before_an_interruption_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupts = Part("kernels", "part_interrupts", 1.0)
    monkeypatch.setenv("PYTHONPATH", str(HERE / "parts"))
    monkeypatch.setattr(parts, "PARTS", (PARTS[1], interrupts, PARTS[-2]))
    marked = Child.mark_processed
    # Long enough for the part's signal to come between a report and the mark of it.
    monkeypatch.setattr(Child, "mark_processed", lambda child: (time.sleep(0.2), marked(child)))
    out = tmp_path / "out"
    ended = 128 + signal.SIGTERM
    assert main(["gpucheck", "--out", str(out), "--lang", "en"]) == ended
    machine, interrupted, last = read_result(out).parts
    assert (machine.verdict, interrupted.verdict, last.verdict) == ("pass", "skipped", "skipped")
    assert interrupted.reason == last.reason == INTERRUPTED
    assert [each.id for each in interrupted.checks] == ["begun"]
    assert interrupted.seconds is not None
    assert (out / ARCHIVE).exists()
    capsys.readouterr()
    monkeypatch.setattr(parts, "PARTS", (interrupts, PARTS[-2]))
    assert main(["gpucheck", "--out", str(tmp_path / "no"), "--lang", "en"]) == ended
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("minutes", ["0", "-1", "x", "61", "nan", "inf"])
def test_minutes_that_are_none(
    minutes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["gpucheck", "--minutes", minutes, "--out", str(out), "--lang", "en"]
    assert main(words) == ExitCode.USAGE
    assert "--minutes" in capsys.readouterr().err
    assert not out.exists()
