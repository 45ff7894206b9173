"""Blocks saved by sharing.

    request 0   table [ 3 | 5 | 8 ]
    request 1   table [ 3 | 5 | 2 ]      6 table entries, 4 distinct blocks: 2 of 6 are saved

The ratio is that of Kwon et al. (arXiv 2309.06180, section 6.3): saved blocks / blocks without
sharing (``table_entries`` and ``owned_blocks`` of the ledger). A cached block counts while a
request owns it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sharing:
    """Blocks at one moment, or block-steps over a run.

    Attributes:
        unshared: entries of all block tables, i.e. blocks needed without sharing.
        held: distinct blocks in the tables.
    """

    unshared: int
    held: int

    @property
    def saved(self) -> int:
        """Blocks that sharing saves."""
        return self.unshared - self.held

    @property
    def share(self) -> float | None:
        """Saved blocks / ``unshared``; None if no block is held."""
        return self.saved / self.unshared if self.unshared else None
