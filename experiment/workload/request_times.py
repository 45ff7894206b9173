"""Times of a request, and the event that reports them.

arrived ── waits ──► started ──► first token ──► finished        nanoseconds of the arm's clock
└────── wait_s ──────┘            │               │
└─────── first_token_s ───────────┘               │
└─────────────── latency_s ───────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass

from experiment.events import RequestFinished, WorkloadRequest


@dataclass(slots=True)
class RequestProgress:
    """A request in an engine, and its times in nanoseconds of its arm's clock.

    ``arrived`` is None for requests that are there from the beginning. The steps are those of
    :class:`experiment.events.RequestFinished`.
    """

    request: WorkloadRequest
    started: int | None = None
    first_token: int | None = None
    arrived: int | None = None
    arrival_step: int | None = None
    first_token_step: int | None = None

    def begin(self, now: int) -> None:
        """Set the start, unless it has started."""
        if self.started is None:
            self.started = now

    def sample(self, now: int, step: int | None = None) -> None:
        """Set time and step of the first token, unless it has one."""
        if self.first_token is None:
            self.first_token, self.first_token_step = now, step

    def finished(
        self, now: int, arm: str, step: int | None, reason: str, tokens: list[int], text: str,
        began: int,
    ) -> RequestFinished:  # fmt: skip
        """Build the event of a request that has started; its arm began to generate at ``began``."""
        began = began if self.arrived is None else self.arrived
        assert self.started is not None
        return RequestFinished(
            arm=arm,
            step=step,
            request=self.request.id,
            reason=reason,
            prompt_tokens=len(self.request.token_ids),
            tokens=tokens,
            text=text,
            wait_s=(self.started - began) / 1e9,
            first_token_s=None if self.first_token is None else (self.first_token - began) / 1e9,
            latency_s=(now - began) / 1e9,
            arrival_step=self.arrival_step,
            first_token_step=self.first_token_step,
        )
