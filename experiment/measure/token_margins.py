"""Where arms generated other tokens: their first differences, and how close each call was."""

from __future__ import annotations

from experiment.analysis.arm_results import arm_results
from experiment.analysis.conclusions import compare_tokens, first_differences
from experiment.children.margins import TokenDifference
from experiment.config.schema import Config
from experiment.model.load import transformers_attention
from experiment.record.log import read_record
from experiment.runner.session import Session
from experiment.workload.prepared import Prepared

MOST = 32


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
            "attention": transformers_attention(prepared.model),
        }
        session.measure_margins(task, config)


def find_differences(session: Session, prepared: Prepared) -> list[TokenDifference]:
    """Where each arm that finished parts from the first one, for each request with other tokens.

    No more than :data:`MOST` of an arm: each is a pass over the prompt.
    """
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
                    TokenDifference(
                        arm=comparison.arm,
                        reference=comparison.reference,
                        request=request,
                        index=index,
                        ids=prompts[request] + pair[0][:index],
                        tokens=(pair[0][index], pair[1][index]),
                    )
                )
    return found
