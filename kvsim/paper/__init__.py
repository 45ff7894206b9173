"""Claims of the PagedAttention paper (Kwon et al., SOSP 2023, arXiv 2309.06180), checked.

Covers what lengths and memory determine. :data:`UNCHECKED` lists what needs GPU speed or a model's
probabilities.

    printed value ─► PaperClaim ◄─ ours: one value per seed ─► mean, spread, verdict
"""

from kvsim.paper.claims import PaperClaim, Tolerance, Verdict
from kvsim.paper.result import UNCHECKED, PaperResult

__all__ = ["UNCHECKED", "PaperClaim", "PaperResult", "Tolerance", "Verdict"]
