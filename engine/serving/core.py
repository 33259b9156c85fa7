"""One engine without a thread: scheduler, runner and outputs, advanced one step at a time by whoever owns it.

A fault that can be pinned on one request ends that request: a faulty row, a grammar, a callback, or a step that raises
only when that request is in it (found by halving). What cannot be pinned is raised as `StepFailure` to the owner.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.config import EngineConfig
from engine.errors import DeadlineExceeded, DuplicateRequest, EngineError, EngineFault, EngineOverloaded
from engine.metrics.stats import EngineStats, StatsRecorder
from engine.ports import LoadedModel
from engine.requests import FinishReason, GenerationEvent, GenerationRequest, PromptScore
from engine.scheduling.plan import SequenceUpdate
from engine.scheduling.scheduler import Scheduler
from engine.sequence import Consumption, Kind, Sequence
from engine.serving.isolation import CulpritFault, StepFailure, run_in_halves
from engine.serving.output import RequestOutput, TokenBytes
from engine.step import Step, StepResult

log = logging.getLogger(__name__)
_ENDED_WELL = (FinishReason.STOP, FinishReason.LENGTH)
_LONE_FAILURES = 3
"""Failures in a row of a step with a single request, after which the runner is held to be broken."""


class Culprit(NamedTuple):
    """A request whose presence makes a step fail. `proven`: others of that step ran well without it."""

    fingerprint: bytes
    proven: bool


class EngineOutput(NamedTuple):
    """One item for one waiter. `last`: nothing follows."""

    request_id: str
    ticket: int
    """The submission's; ids may be used again while old deliveries are under way, tickets never."""
    item: GenerationEvent | PromptScore | tuple[float, ...] | EngineError
    last: bool


@dataclass(frozen=True, slots=True)
class Submission:
    """A validated request with everything compiled that could block the loop."""

    request: GenerationRequest
    max_tokens: int
    seed: int
    kind: Kind = Kind.GENERATE
    grammar: Any = None
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    likelihood: bool = False
    """For `score`: ask for the prompt's log-probabilities."""
    fingerprint: bytes = b""
    """The same for equal work under any id; see `PoisonRequest`."""
    ticket: int = 0
    suspect: bool = False
    """Set by the loop: equal work was in a step that killed it."""
    consumption: Consumption | None = None
    """Told which sequences the request became."""


@dataclass(slots=True)
class _RequestState:
    submission: Submission
    output: RequestOutput
    ticket: int


class EngineCore:
    """Not thread-safe: one owner calls everything."""

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel,
        recorder: StatsRecorder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        runner = model.runner
        self.config, self.model, self.recorder = config, model, recorder
        self.scheduler = Scheduler(
            config,
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            eos_token_ids=runner.eos_token_ids,
            watch=recorder.blocks,
        )
        self.current_step: Step | None = None
        self.faulty_requests: list[Culprit] = []
        """Requests that made a whole step fail; the owner takes and clears them."""
        self.completed: list[bytes] = []
        """Fingerprints of requests that ended well; the owner takes and clears them."""
        self._last_run: tuple[Step, StepResult] | None = None
        self._clock = clock
        self._token_bytes = TokenBytes(model.tokenizer)
        self._living: dict[str, _RequestState] = {}
        self._order = 0
        self._lone_failures = 0
        self._outbox: list[EngineOutput] = []
        self._told_shares: list[str] = []
        self._told_before: list[float | None] = []
        """Of each token of the step that is being reported: its share, and when its choice's last one came."""

    # -- requests ----------------------------------------------------------------------------------------------------

    def add(self, submission: Submission) -> None:
        """Queue a request. Raises `DuplicateRequest` or `EngineOverloaded`; nothing changes then."""
        request = submission.request
        if request.request_id in self._living:
            raise DuplicateRequest("request_id", request.request_id, "a request with this id is running")
        sampling = request.sampling
        if len(self.scheduler.waiting) + sampling.n > self.config.max_waiting:
            raise EngineOverloaded(
                f"{len(self.scheduler.waiting)} requests are waiting; the limit is {self.config.max_waiting}",
                hint="retry later or raise `--max-waiting`",
            )
        sequences = [self._sequence(submission, choice) for choice in range(sampling.n)]
        output = RequestOutput(request.request_id, sampling, sequences, self.model.tokenizer, self._token_bytes)
        self._living[request.request_id] = _RequestState(submission, output, submission.ticket)
        if submission.consumption is not None:
            submission.consumption.sequences = tuple(sequences)
        for sequence in sequences:
            self.scheduler.add(sequence)

    def _sequence(self, submission: Submission, choice: int) -> Sequence:
        request = submission.request
        self._order += 1
        grammar = submission.grammar
        return Sequence(
            request_id=request.request_id,
            choice=choice,
            seed=(submission.seed + choice) & (2**64 - 1),
            sampling=request.sampling,
            token_ids=list(request.prompt_token_ids),
            num_prompt_tokens=len(request.prompt_token_ids),
            max_tokens=submission.max_tokens,
            order=self._order,
            arrived_at=self._clock(),
            kind=submission.kind,
            grammar=grammar.copy() if grammar is not None and choice else grammar,
            bad_word_ids=submission.bad_word_ids,
            salt=request.cache_salt,
            adapter=request.adapter,
            share_key=request.scheduling.share_key,
            share_weight=request.scheduling.share_weight,
            priority=request.scheduling.priority,
            suspect=submission.suspect,
            deadline_s=request.scheduling.deadline_s,
            want_prompt_logprobs=choice == 0
            and (request.sampling.prompt_logprobs is not None or submission.likelihood),
        )

    def end(self, request_id: str, reason: FinishReason, stop_reason: str | int | None) -> None:
        """End all choices of a request. Idempotent and tolerated in every state; unknown ids are fine."""
        living = self._living.get(request_id)
        if living is None:
            return
        now = self._clock()
        for sequence in living.output.sequences:
            if self.scheduler.finish(sequence, reason, stop_reason, now):
                self._close(living, sequence)

    def fail_all(self, error: EngineError) -> list[EngineOutput]:
        """Tell every waiter. The core must not be used afterwards."""
        for living in self._living.values():
            self._send(living, error, last=True)
        self._living.clear()
        return self._take_outbox()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._outbox)

    @property
    def num_requests(self) -> int:
        return len(self._living)

    def ran_well(self) -> list[bytes]:
        """Fingerprints of the requests whose part of the last step succeeded, ended ones apart (`completed`)."""
        if self._last_run is None:
            return []
        step, result = self._last_run
        ids = {work.sequence.request_id for work in step.work if work.slot not in result.faults}
        return [self._living[i].submission.fingerprint for i in ids if i in self._living]

    def suspects(self) -> list[bytes]:
        """Fingerprints of the requests in the step being run."""
        step = self.current_step
        ids = dict.fromkeys(work.sequence.request_id for work in step.work) if step is not None else {}
        return [self._living[i].submission.fingerprint for i in ids if i in self._living]

    # -- one step ----------------------------------------------------------------------------------------------------

    def step(self) -> list[EngineOutput]:
        """Run one step. Raises `StepFailure` when the runner is broken; other exceptions are engine bugs."""
        started = time.perf_counter()
        step = self.scheduler.schedule(self._clock())
        self._report_ended()
        self.current_step, self._last_run = step, None
        if step.work:
            before_run = time.perf_counter()
            result = self._execute(step)
            run_s = time.perf_counter() - before_run
            now = self._clock()
            self._last_run = step, result
            self._apply(self.scheduler.update(step, result, now), now, len(result.faults) < len(step.work))
            step_s = time.perf_counter() - started
            self.recorder.late_compiles += result.late_compiles
            host_s = step_s - (result.kernel_s if result.kernel_s else run_s - result.host_s)
            self.recorder.step(step.num_tokens, host_s, step_s, self.scheduler.kv.snapshot(self.scheduler.running))
        self.current_step = None
        return self._take_outbox()

    def settle(self) -> list[EngineOutput]:
        """Apply ends by command and by deadline without a step. For an engine that is paused."""
        self.scheduler.expire(self._clock())
        self._report_ended()
        return self._take_outbox()

    def _apply(self, advances: list[SequenceUpdate], now: float, others_ran_well: bool) -> None:
        for advance in advances:
            request_id = advance.sequence.request_id
            living = self._living.get(request_id)
            if living is None:
                continue
            if advance.error is not None:
                if isinstance(advance.error, CulpritFault):
                    self.faulty_requests.append(Culprit(living.submission.fingerprint, others_ran_well))
                self._fail(living, _as_fault(advance.error))
                continue
            try:
                self._report(living, advance, now)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic of a Rust extension is no `Exception`
                log.exception("the output of one request failed", extra={"request_id": request_id})
                self._fail(living, _as_fault(error))
        self._count_tokens(now)

    def _report(self, living: _RequestState, advance: SequenceUpdate, now: float) -> None:
        sequence, _, token, prompt_logprobs, _, _ = advance
        output = living.output
        if prompt_logprobs is not None:
            output.add_prompt_logprobs(advance, prompt_logprobs)
        if sequence.finish_reason is None and token is None:
            return
        choice = output.choices[sequence.choice]
        if choice.last_token_at is None:
            self.recorder.first_token(sequence, now)
        if sequence.kind is not Kind.GENERATE:
            self._close(living, sequence, item=_special_item(advance, output))
            return
        text = ""
        if token is not None:
            self._told_shares.append(sequence.share_key)
            self._told_before.append(choice.last_token_at)
            choice.last_token_at = now
            text = choice.accept(token)
            if choice.stopped_by is not None:
                self.scheduler.stop_at(sequence, choice.stopped_by, now)
        if sequence.finish_reason is not None:
            self._close(living, sequence, advance=advance, text=text)
        else:
            event = output.event(sequence, token, text)
            self._outbox.append(EngineOutput(sequence.request_id, living.ticket, event, False))

    def _count_tokens(self, now: float) -> None:
        shares, self._told_shares = self._told_shares, []
        before, self._told_before = self._told_before, []
        self.recorder.tokens(shares, before, now)

    def _report_ended(self) -> None:
        """Sequences that the scheduler ended by itself while planning."""
        for sequence in self.scheduler.take_ended():
            living = self._living.get(sequence.request_id)
            if living is None:
                continue
            if sequence.finish_reason is FinishReason.ERROR:
                self._fail(living, EngineFault("the request does not fit the KV cache"))
            elif sequence.finish_reason is FinishReason.DEADLINE and not living.output.has_begun:
                self._fail(living, DeadlineExceeded(), FinishReason.DEADLINE)
            else:
                self._close(living, sequence)

    def _close(
        self,
        living: _RequestState,
        sequence: Sequence,
        *,
        advance: SequenceUpdate | None = None,
        text: str = "",
        item: PromptScore | tuple[float, ...] | None = None,
    ) -> None:
        """The last event of one choice, and of the request when it was the last choice."""
        output, now = living.output, self._clock()
        choice = output.choices[sequence.choice]
        text += choice.flush()
        if choice.stopped_by is not None:
            self.scheduler.stop_at(sequence, choice.stopped_by, now)
        event = output.event(sequence, advance.token if advance is not None else None, text)
        self.recorder.sequence_finished(sequence, sequence.finish_reason or FinishReason.ERROR, now)
        if output.done:
            del self._living[sequence.request_id]
            if sequence.first_token_at is not None and sequence.finish_reason in _ENDED_WELL:
                self.completed.append(living.submission.fingerprint)
            lengths = [s.num_output for s in output.sequences]
            self.recorder.request_finished(sequence.num_prompt_tokens, lengths, sequence.max_tokens)
        self._send(living, item if item is not None else event, last=output.done)

    def _fail(self, living: _RequestState, error: EngineError, reason: FinishReason = FinishReason.ERROR) -> None:
        """A fault of one choice ends its request, and no other."""
        now = self._clock()
        request_id = living.submission.request.request_id
        for sequence, choice in zip(living.output.sequences, living.output.choices, strict=True):
            if reason is FinishReason.ERROR:
                self.scheduler.fail(sequence, now)
            else:
                self.scheduler.finish(sequence, reason, None, now)
            if not choice.reported:
                self.recorder.sequence_finished(sequence, reason, now)
        self._living.pop(request_id, None)
        self._send(living, error, last=True)

    def _send(self, living: _RequestState, item: Any, *, last: bool) -> None:
        self._outbox.append(EngineOutput(living.output.request_id, living.ticket, item, last))

    def _take_outbox(self) -> list[EngineOutput]:
        outputs, self._outbox = self._outbox, []
        return outputs

    def _execute(self, step: Step) -> StepResult:
        try:
            result = self.model.runner.execute(step)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of a Rust extension is no `Exception`
            log.exception("a step failed", extra={"step": step.id, "requests": len(step.work)})
            self.recorder.step_faults += 1
            result = run_in_halves(self.model.runner.execute, step)
            if all(isinstance(result.faults.get(work.slot), CulpritFault) for work in step.work):
                self._lone_failures += 1
                several = len({work.sequence.request_id for work in step.work}) > 1
                if several or self._lone_failures >= _LONE_FAILURES:
                    raise StepFailure("every request of the step fails, alone as well") from error
                return result
        self._lone_failures = 0
        return result

    # -- looking in --------------------------------------------------------------------------------------------------

    def stats(self, **about: Any) -> EngineStats:
        """`about`: what the owner knows (state, stage, percent, stalled_s)."""
        return self.recorder.snapshot(self.scheduler, **about)


def _special_item(advance: SequenceUpdate, output: RequestOutput) -> PromptScore | tuple[float, ...]:
    """The answer to a score or an embedding request."""
    if advance.pooled is not None:
        return tuple(float(value) for value in advance.pooled)
    token, usage = advance.token, output.usage()
    if token is None or token.entropy is None:
        raise EngineFault("the runner returned no entropy for a score")
    return PromptScore(
        first_entropy=token.entropy,
        first_margin=token.margin if token.margin is not None else 0.0,
        prompt_mean_logprob=output.prompt_mean_logprob(),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
    )


def _as_fault(error: BaseException) -> EngineError:
    """Typed errors pass; anything else becomes an `EngineFault` that does not repeat its text."""
    if isinstance(error, EngineError):
        return error
    fault = EngineFault("a fault while this request ran", hint="other requests are not affected")
    fault.__cause__ = error
    return fault
