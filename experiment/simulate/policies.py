"""Names of allocation policies, and what they do."""

from __future__ import annotations

from experiment.text.errors import unknown, user_error
from experiment.text.messages import Message, message
from kvsim.sim.config import SIM_POLICIES, PolicyName

DEFAULT_POLICIES: tuple[PolicyName, ...] = ("slabs", "max", "pow2", "oracle", "paged")


def policies_of(text: str | None) -> tuple[PolicyName, ...]:
    """Policies between commas; ``all`` is every one.

    Raises:
        UserError: an unknown one, or none.
    """
    if text is None:
        return DEFAULT_POLICIES
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise user_error("error.empty", config_key="--policy")
    found: list[PolicyName] = []
    for name in names:
        if name == "all":
            found += SIM_POLICIES
        elif name in SIM_POLICIES:
            found.append(name)
        else:
            raise unknown("policy", name, SIM_POLICIES, see="--list policies")
    return tuple(dict.fromkeys(found))


def policy_message(name: str) -> Message:
    """What a policy does."""
    return message(f"sim.policy.{name.replace('+', '_')}")
