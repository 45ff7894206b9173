"""Key paths of figures that several parts of the page show; see ``facts.keyed``."""

from __future__ import annotations

from experiment.analysis.results import ArmResult


def of_arm(arm: ArmResult, path: str) -> str:
    """A key path in which ``@`` stands for the arm's result."""
    return path.replace("@", f"results.arms[{arm.arm}]")


def bytes_path(arm: ArmResult, path: str) -> str:
    """Key path of some slots of an arm in bytes, as :meth:`ArmResult.bytes_of` counts them."""
    plain = f"{path} * @.slot_bytes"
    scales = f" + {path} * @.scale_bytes / @.block_size" if arm.scale_bytes else ""
    return of_arm(arm, plain + scales)
