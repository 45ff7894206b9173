"""Logits at the first position where an arm's tokens differ, by plain Transformers.

Equal weights in another kernel give slightly different logits. If the best two are that close, the
argmax flips and the following text differs. The child process ``python -m
experiment.children.margins`` computes both logits there. It runs only if tokens differ.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from experiment.events import TokenMargin
from experiment.model.load import load_model
from experiment.process.wire import Wire, exit_process, serve


class TokenDifference(BaseModel):
    """A first difference: ``ids`` are the tokens of both arms before it, prompt included."""

    model_config = ConfigDict(frozen=True)

    arm: str
    reference: str
    request: int
    index: int
    ids: list[int]
    tokens: tuple[int, int]


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Emit a TokenMargin for each difference of the task."""
    import torch

    model: Any = load_model(task["directory"], task["dtype"], task["device"], task["attention"])
    for data in task["differences"]:
        one = TokenDifference.model_validate(data)
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
    exit_process(serve("margins", main))
