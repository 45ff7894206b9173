"""Where an arm's tokens first differ: how close the call was, by plain Transformers.

Equal weights in another kernel give logits that differ in their last digits; where the best two
are that close, the argmax flips, and everything behind it is another text. The child process
``python -m experiment.margins`` reads both logits at that place. It runs only if tokens differ.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from experiment.config import Config
from experiment.events import TokenMargin
from experiment.launch import Prepared
from experiment.model.load import load_model
from experiment.record import read_record
from experiment.runner import Session
from experiment.wire import Wire, leave, serve

MOST = 32
_ATTENTION = "sdpa"


class Difference(BaseModel):
    """A first difference: ``ids`` are the tokens that both arms have, prompt included."""

    model_config = ConfigDict(frozen=True)

    arm: str
    reference: str
    request: int
    index: int
    ids: list[int]
    tokens: tuple[int, int]


def explain_differences(session: Session, config: Config, device: str, prepared: Prepared) -> None:
    """Compare the tokens that are on record and, where arms differ, look at the logits there."""
    # Where tokens are drawn, the most likely ones say nothing about a difference.
    found = find_differences(session, prepared) if prepared.workload.sampling.greedy else []
    if found:
        task = {
            "differences": [one.model_dump(mode="json") for one in found],
            "directory": prepared.directory,
            "dtype": prepared.model.dtype,
            "device": device,
        }
        session.look_at_margins(task, config)


def find_differences(session: Session, prepared: Prepared) -> list[Difference]:
    """Where each arm that finished parts from the first one, for each request with other tokens.

    No more than :data:`MOST` of an arm: each is a pass over the prompt.
    """
    from experiment.analysis import arm_results
    from experiment.conclusions import compare_tokens, first_differences

    arms = {arm.arm: arm for arm in arm_results(read_record(session.directory, own=True))}
    prompts = {request.id: request.token_ids for request in prepared.workload.requests}
    found = []
    greedy = prepared.workload.sampling.greedy
    for comparison in compare_tokens(list(arms.values()), greedy):
        if comparison.first_difference is None:
            continue
        both = [arms[name] for name in (comparison.reference, comparison.arm)]
        told = [{r.request: r.tokens for r in arm.requests} for arm in both]
        for request, index in first_differences(both[1], both[0])[:MOST]:
            pair = [tokens.get(request, []) for tokens in told]
            if all(len(tokens) > index for tokens in pair):
                found.append(
                    Difference(
                        arm=comparison.arm,
                        reference=comparison.reference,
                        request=request,
                        index=index,
                        ids=prompts[request] + pair[0][:index],
                        tokens=(pair[0][index], pair[1][index]),
                    )
                )
    return found


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Emit a TokenMargin for each difference of the task."""
    import torch

    model: Any = load_model(task["directory"], task["dtype"], task["device"], _ATTENTION)
    for data in task["differences"]:
        one = Difference.model_validate(data)
        ids = torch.tensor([one.ids], device=task["device"])
        with torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False).logits[0, -1].float()
        best, second = logits.topk(2).values.tolist()
        wire.emit(
            TokenMargin(
                arm=one.arm,
                reference=one.reference,
                request=one.request,
                index=one.index,
                tokens=one.tokens,
                logits=(float(logits[one.tokens[0]]), float(logits[one.tokens[1]])),
                margin=best - second,
            )
        )


if __name__ == "__main__":
    leave(serve("margins", main))
