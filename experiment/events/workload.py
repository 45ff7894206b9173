"""Events of the workload: the model, the requests, and how each request ended."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from experiment.events.base import ArmEvent, EventBase, Int, Name
from experiment.events.sampling import SamplingConfig
from experiment.text.messages import Message


class TurnAwaited(ArmEvent):
    """The arm waits before a measured repeat. Between processes only; never written to the log.

    There is no wait before the warm-up, after which the arm has allocated all that it needs.
    """

    event: Literal["turn_awaited"] = "turn_awaited"
    repeat: Int


class TurnStarted(EventBase):
    """The arm continues with this repeat; later events belong to the ``cell`` of this index.

    Arms of one ``group`` are interleaved, so repeats of the same number are close in time. The
    group's number is the time of its first turn; None: the arm runs its repeats consecutively.
    """

    event: Literal["turn"] = "turn"
    cell: Int
    arm: Name
    repeat: Int
    group: Int | None


class RepeatFinished(ArmEvent):
    """An arm of an experiment has finished a repeat: its steps and requests since the last one.

    The first repeat is the warm-up. ``generate_s``: seconds without pauses.
    """

    event: Literal["repeat"] = "repeat"
    repeat: Int
    warm_up: bool
    generate_s: float


class ModelPrepared(EventBase):
    """The weights that every arm loads.

    ``notes`` explain the effects of ``source``. ``own_attention``: the paged engine runs
    the model's own attention code on gathered keys and values.
    """

    event: Literal["model"] = "model"
    name: str
    source: Literal["hub", "hub_cache", "local", "random"]
    architecture: str
    parameters: Int
    weights_sha256: str
    config_sha256: str | None = None  # of config.json; absent in older logs
    dtype: str
    device: str
    layers: Int
    kv_heads: Int
    head_dim: Int
    element_bytes: Int
    max_positions: Int
    vocab_size: Int
    eos_token_id: Int | tuple[Int, ...] | None
    own_attention: bool = False
    random_seed: Int | None = None
    random_init_range: float | None = None
    notes: list[Message] = Field(default_factory=list)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        ids = self.eos_token_id
        return ids if isinstance(ids, tuple) else () if ids is None else (ids,)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one token's K and V over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes


class WorkloadRequest(BaseModel):
    """One request: text, token ids and maximum number of new tokens.

    ``sample_of`` is None for the first sample of a prompt. Further samples have consecutive ids and
    the id of the first here. ``arrival`` is in steps or seconds, as ``workload.clock`` defines. A
    smaller ``priority`` is more urgent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Int
    prompt: str
    token_ids: list[Int]
    max_new_tokens: Int
    sample_of: Int | None = None
    arrival: float = 0
    priority: Int = 0


class WorkloadReady(EventBase):
    """Requests of the run, sampling parameters, and the KV budget of each arm in bytes."""

    event: Literal["workload"] = "workload"
    requests: list[WorkloadRequest]
    max_length: Int
    block_size: Int
    budget_bytes: Int
    sampling: SamplingConfig = SamplingConfig()

    def samples(self) -> list[list[WorkloadRequest]]:
        """The requests, grouped by prompt."""
        groups: list[list[WorkloadRequest]] = []
        for request in self.requests:
            if request.sample_of is None:
                groups.append([])
            groups[-1].append(request)
        return groups


class RequestFinished(ArmEvent):
    """A request has finished. ``tokens`` are the generated tokens, without the prompt.

    Seconds count from the request's arrival and exclude pauses for memory readings: ``wait_s``
    until it first ran, ``first_token_s`` until its first token (TTFT), ``latency_s`` until its last
    token. ``arrival_step`` is the first step that could schedule it, ``first_token_step`` the step
    of its first token; None if the engine is not ours.
    """

    event: Literal["request"] = "request"
    step: Int | None = None
    request: Int
    reason: str
    prompt_tokens: Int
    tokens: list[Int]
    text: str
    wait_s: float
    first_token_s: float | None
    latency_s: float
    arrival_step: Int | None = None
    first_token_step: Int | None = None


class TokenMargin(ArmEvent):
    """Logits at the first position where an arm's tokens differ from the reference arm's.

    ``logits`` are those of ``tokens`` (reference, arm) after the common tokens, computed by plain
    Transformers. ``margin`` is the largest logit there minus the second largest.
    """

    event: Literal["token_margin"] = "token_margin"
    reference: Name
    request: Int
    index: Int
    tokens: tuple[Int, Int]
    logits: tuple[float, float]
    margin: float
