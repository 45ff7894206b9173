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
_WAYS = [("light", "en", 1300), ("dark", "zh", 390)]
# Violations of `region` are moderate.
_RUN = """async () => {
  const options = { resultTypes: ['violations'], rules: { region: { enabled: false } } };
  const found = await axe.run(document, options);
  return found.violations.map(one =>
    [one.impact, one.id, one.nodes.map(node => node.html.slice(0, 200))]);
}"""


def violations(browser: Any, *files: Path) -> list[Any]:
    """What axe calls serious or critical on pages with everything unfolded."""
    one, script = Opened(browser, files[0]), AXE.read_text(encoding="utf-8")
    serious = []
    for file in files:
        one.page.goto(file.as_uri())
        one.page.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
        one.page.evaluate(script)
        for scheme, lang, width in _WAYS:
            one.page.emulate_media(color_scheme=scheme)
            one.page.set_viewport_size({"width": width, "height": 900})
            one.page.click(f'[data-language="{lang}"]')
            found = one.page.evaluate(_RUN)
            bad = [each for each in found if each[0] in ("serious", "critical")]
            serious += [(file.name, lang, *each) for each in bad]
    one.context.close()
    assert one.complaints == []
    return serious
