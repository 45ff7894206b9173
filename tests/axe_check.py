"""axe-core on a page; ``.ci/run`` fetches it, and without it these tests are skipped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pages import Opened

AXE = Path(os.environ.get("PAGEDKV_AXE") or Path.home() / ".cache/pagedkv-lab/axe.min.js")
NEEDED = bool(os.environ.get("PAGEDKV_NEED_AXE"))  # as in CI: its absence is a failure
needs_axe = pytest.mark.skipif(
    not AXE.is_file() and not NEEDED, reason="axe-core is not there; .ci/run fetches it"
)
# A screen and a telephone, between them both themes and both languages.
WAYS = [("light", "en", 1300), ("dark", "zh", 390)]
_RUN = """async () => {
  const found = await axe.run(document, { resultTypes: ['violations'] });
  return found.violations.map(one =>
    [one.impact, one.id, one.nodes.map(node => node.html.slice(0, 200))]);
}"""


def violations(browser: Any, file: Path, scheme: str, lang: str, width: int) -> list[Any]:
    """What axe calls serious or critical on a page with everything unfolded."""
    one = Opened(browser, file, color_scheme=scheme, viewport={"width": width, "height": 900})
    one.page.click(f'[data-language="{lang}"]')
    one.page.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
    one.page.evaluate(AXE.read_text(encoding="utf-8"))
    found = one.page.evaluate(_RUN)
    one.context.close()
    assert one.complaints == []
    return [each for each in found if each[0] in ("serious", "critical")]
