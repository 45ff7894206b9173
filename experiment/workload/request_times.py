"""Times of a request, and the event that reports them.

arrived ── waits ──► started ──► first token ──► finished        nanoseconds of the arm's clock
└────── wait_s ──────┘            │               │
└─────── first_token_s ───────────┘               │
└─────────────── latency_s ───────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass

from experiment.events import RequestFinished, WorkloadRequest


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Times of one request, in nanoseconds of its arm's clock.

    ``arrived`` is None for requests that are there from the beginning. The steps are those of
    :class:`experiment.events.RequestFinished`.
    """

    started: int
    first_token: int | None
    finished: int
    arrived: int | None = None
    arrival_step: int | None = None
    first_token_step: int | None = None

    def event(
        self, arm: str, step: int | None, request: WorkloadRequest, reason: str, tokens: list[int],
        text: str, began: int,
    ) -> RequestFinished:  # fmt: skip
        """Build the event for ``request``, whose arm began to generate at ``began``."""
        began = began if self.arrived is None else self.arrived
        return RequestFinished(
            arm=arm,
            step=step,
            request=request.id,
            reason=reason,
            prompt_tokens=len(request.token_ids),
            tokens=tokens,
            text=text,
            wait_s=(self.started - began) / 1e9,
            first_token_s=None if self.first_token is None else (self.first_token - began) / 1e9,
            latency_s=(self.finished - began) / 1e9,
            arrival_step=self.arrival_step,
            first_token_step=self.first_token_step,
        )


@dataclass(slots=True)
class RequestProgress:
    """A request in an external engine; its times are those of RequestTimes."""

    request: WorkloadRequest
    started: int | None = None
    first_token: int | None = None
    arrived: int | None = None
    arrival_step: int | None = None
    first_token_step: int | None = None

    def ended(self, now: int, unseen: int) -> RequestTimes:
        """Times of a finished request; ``unseen`` replaces a start that was not observed."""
        return RequestTimes(
            unseen if self.started is None else self.started,
            self.first_token,
            now,
            self.arrived,
            self.arrival_step,
            self.first_token_step,
        )
