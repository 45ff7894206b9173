"""What sharing saves: blocks that requests would hold alone, against blocks that they do hold.

    request 0   table [ 3 | 5 | 8 ]
    request 1   table [ 3 | 5 | 2 ]      without sharing 6 blocks, with it 4: 2 of 6 are saved

The share is that of Kwon et al. (arXiv 2309.06180, section 6.3): blocks saved by sharing / blocks
without sharing, which are ``table_entries`` and ``owned_blocks`` of the ledger. Cached blocks count
where a request holds them, and only then.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sharing:
    """Blocks at one moment, or block-steps over a run.

    Attributes:
        unshared: entries of all block tables: blocks that would be held without sharing.
        held: different blocks in them.
    """

    unshared: int
    held: int

    @property
    def saved(self) -> int:
        """Blocks that sharing saves."""
        return self.unshared - self.held

    @property
    def share(self) -> float | None:
        """Saved / without sharing; None where nothing is held."""
        return self.saved / self.unshared if self.unshared else None
