"""axe-core finds no serious violation on the page. It is not ours: ``.ci/run`` fetches it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pages import Opened

AXE = Path(os.environ.get("PAGEDKV_AXE") or Path.home() / ".cache/pagedkv-lab/axe.min.js")
NEEDED = bool(os.environ.get("PAGEDKV_NEED_AXE"))  # as in CI: its absence is a failure
pytestmark = pytest.mark.skipif(
    not AXE.is_file() and not NEEDED, reason="axe-core is not there; .ci/run fetches it"
)
RUN = """async () => {
  const found = await axe.run(document, { resultTypes: ['violations'] });
  return found.violations.map(one =>
    [one.impact, one.id, one.nodes.map(node => node.html.slice(0, 200))]);
}"""


@pytest.mark.parametrize(("scheme", "lang", "width"), [("light", "en", 1300), ("dark", "zh", 390)])
def test_there_is_no_serious_violation(
    browser: Any, report: Path, scheme: str, lang: str, width: int
) -> None:
    viewport = {"width": width, "height": 900}
    file = report / "report.html"
    one = Opened(browser, file, color_scheme=scheme, viewport=viewport)
    one.page.click(f'[data-language="{lang}"]')
    one.page.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
    one.page.evaluate(AXE.read_text(encoding="utf-8"))
    found = one.page.evaluate(RUN)
    one.context.close()
    assert not [v for v in found if v[0] in ("serious", "critical")], found
