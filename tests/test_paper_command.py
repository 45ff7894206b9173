"""``paper``: what it prints and writes, in both languages, and when it fails."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from guide_pages import read

from experiment.commands.main import main
from experiment.commands.paper import parse_seeds
from experiment.report.facts.paper import claim_cells, place_in_paper
from experiment.text import LANGUAGES, Translator, catalogue
from experiment.text.errors import ExitCode, UserError
from kvsim.paper import Verdict
from kvsim.paper.memory import closed_form_claims
from kvsim.paper.result import PaperResult, check_paper


@pytest.fixture
def closed_forms_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.paper.result.PARTS", (lambda _: closed_form_claims(),))


@pytest.fixture(scope="module")
def result() -> PaperResult:
    """All claims over one seed; the command takes five, as `make test-full PART=commands` does."""
    return check_paper([0])


def test_all_claims_hold(result: PaperResult) -> None:
    assert not [(c.id, c.mean, c.paper) for c in result.failed]
    judged = {c.id for c in result.claims if c.verdict is Verdict.HOLDS}
    for figure in ("kv.", "table1.", "fig2.", "fig13.", "fig15.", "fig17.", "fig18b.", "fig19."):
        assert any(name.startswith(figure) for name in judged), figure
    # Token states of one policy are parts of one pool.
    for policy in ("max", "pow2", "oracle"):
        parts = [c.mean for c in result.claims if c.id.startswith(f"fig2.{policy}.")]
        assert len(parts) == 4
        assert sum(parts) == pytest.approx(100)


def test_the_page_has_every_claim_with_its_verdict(result: PaperResult) -> None:
    """Figures of one seed differ from those of five; ``make paper-page`` writes these."""
    t = Translator("en")
    rows = [line.strip("|").split("|") for line in read("docs/paper.md").splitlines()]
    shown = [[cell.strip() for cell in row] for row in rows if len(row) == 6][2:]
    told = [(place_in_paper(t, c), claim_cells(t, c)) for c in result.to_json()["claims"]]
    assert [(place, what, paper, end) for place, what, paper, _, _, end in shown] == [
        (place, cells[0], cells[1], cells[4]) for place, cells in told
    ]
    closed = [cells for _, cells in told][: len(closed_form_claims())]
    assert [row[1:] for row in shown[: len(closed)]] == closed


@pytest.mark.usefixtures("closed_forms_alone")
@pytest.mark.parametrize("lang", LANGUAGES)
def test_claims_are_printed_and_written(
    lang: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["paper", "--lang", lang, "--out", str(tmp_path), "--seeds", "2"]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert "819,200 B" in printed
    assert catalogue(lang)["paper.verdict_holds"] in printed
    data = json.loads((tmp_path / "paper.json").read_text(encoding="utf-8"))
    assert data["seeds"] == [0, 1]
    assert [claim["id"] for claim in data["claims"]] == [claim.id for claim in closed_form_claims()]
    with (tmp_path / "paper.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [claim.id for claim in closed_form_claims()]
    assert rows[0]["verdict"] == "holds"
    # One value has no deviation: unknown is empty, not 0.
    assert rows[0]["deviation"] == ""


@pytest.mark.usefixtures("closed_forms_alone")
def test_a_claim_outside_of_its_tolerance_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvsim.paper.memory.SLOT_BYTES", 819_201)
    assert main(["paper", "--lang", "en", "--out", str(tmp_path)]) == ExitCode.INCOMPLETE
    assert "FAILS" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "seeds"), [("3", (0, 1, 2)), ("7,9", (7, 9)), ("4, 2", (4, 2))])
def test_seeds_are_a_number_of_them_or_a_list(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds("--seeds", text) == seeds


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "", "1,1", "1,,2", "99999"])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(UserError):
        parse_seeds("--seeds", text)
