"""The PagedAttention paper (Kwon et al., SOSP 2023, arXiv 2309.06180), checked by the simulator.

Only what lengths and memory decide: what needs the speed of a GPU or a model's probabilities is in
:data:`UNCHECKED`, with the reason.

    printed value ─► Claim ◄─ ours: one value for each seed ─► mean, spread, verdict
"""

from kvsim.paper.claims import Claim, Tolerance, Verdict
from kvsim.paper.parts import UNCHECKED, PaperResult

__all__ = ["UNCHECKED", "Claim", "PaperResult", "Tolerance", "Verdict"]
