"""The engine thread: loads the model, runs the step loop, survives its own death. Knows no asyncio.

Commands come in and deliveries go out once per step. When the loop dies, of whatever it was, every waiter is told at
once, what broke is rebuilt and the loop goes on, with a pause where it keeps dying; a request that is known to do it is
refused. Only this thread touches core and runner.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from enum import Enum

from engine.config import EngineConfig
from engine.errors import EngineError, EngineFault, EngineUnavailable, PoisonRequest
from engine.metrics.stats import EngineStats, StatsRecorder
from engine.ports import LoadedModel, Loader, Progress
from engine.requests import FinishReason
from engine.serving.commands import Command, CommandQueue, Control, End, Submit
from engine.serving.core import EngineCore, EngineOutput, Submission
from engine.serving.isolation import StepFailure
from engine.serving.poison import PoisonGuard
from engine.serving.restarts import Restarts

log = logging.getLogger(__name__)
THREAD_NAME = "esclusa-engine"
_REBUILD_TRIES = 3
_SNAPSHOT_EVERY_S = 0.05


class EngineState(Enum):
    LOADING = "loading"
    READY = "ready"
    PAUSED = "paused"
    DRAINING = "draining"
    ASLEEP = "asleep"
    REBUILDING = "rebuilding"
    FAILED = "failed"
    STOPPED = "stopped"


class EngineThread:
    """`deliver` is called from the engine thread with all deliveries of a step; it must not block or raise.

    `progress` is called while loading. The methods below are safe from any thread and return at once; futures complete
    when the thread has acted.
    """

    def __init__(
        self,
        config: EngineConfig,
        loader: Loader,
        deliver: Callable[[list[EngineOutput]], None],
        *,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._loader, self._deliver, self._clock = config, loader, deliver, clock
        self._user_progress = progress
        self._commands = CommandQueue()
        self._guard = PoisonGuard()
        self._restarts = Restarts()
        self._stopping = False
        self._closing = threading.Event()
        """Set by `close` from outside, so that a load under way gives up at its next report of progress."""
        self._core: EngineCore | None = None
        self._recorder = StatsRecorder()
        self._stats = EngineStats()
        self._snapshot_at = 0.0
        self._stage, self._percent = "starting", 0.0
        self.state = EngineState.LOADING
        self.model: LoadedModel | None = None
        self.beat = clock()
        """When the thread last began a step or looked for commands."""
        self.stepping = False
        self.recovering = False
        """It died several times in a row and waits before the next rebuild: nobody should wait for that."""
        self.loaded: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    # -- from any thread ---------------------------------------------------------------------------------------------

    def start(self) -> Future[None]:
        """Completes when the model is loaded, or with the loader's error."""
        self.loaded.set_running_or_notify_cancel()
        self._thread.start()
        return self.loaded

    def submit(self, submission: Submission) -> None:
        self._put(Submit(submission))

    def end(self, request_id: str, reason: FinishReason, stop_reason: str | int | None = None) -> None:
        self._put(End(request_id, reason, stop_reason))

    def pause(self) -> Future[None]:
        """Stop stepping; requests wait and new ones queue."""
        return self._control(lambda: self._switch(EngineState.PAUSED, {EngineState.READY}))

    def resume(self) -> Future[None]:
        return self._control(lambda: self._switch(EngineState.READY, {EngineState.PAUSED, EngineState.DRAINING}))

    def drain(self) -> Future[None]:
        """Refuse new requests; completes when the last one ended, or fails when `resume` came first."""
        self._control(self._begin_drain)
        return self._control(self._check_drained, when_idle=True)

    def sleep(self) -> Future[None]:
        """Drain, then release the weights and forget the cache. `resume` before that calls it off."""
        self._control(self._begin_drain)
        return self._control(self._fall_asleep, when_idle=True)

    def wake(self) -> Future[None]:
        return self._control(self._wake_up)

    def between_steps(self, action: Callable[[], None]) -> Future[None]:
        """Run `action` in the engine thread; it may take as long as a step."""
        return self._control(action, computes=True)

    def clear_poison(self) -> Future[None]:
        """Forget who has broken steps: refused requests run again."""
        return self._control(self._guard.clear)

    def close(self) -> Future[None]:
        """End everything, release the runner, stop the thread; a load under way is given up. `EngineUnavailable` when
        it has stopped before."""
        self._closing.set()
        return self._control(self._begin_stop)

    def join(self, timeout_s: float) -> bool:
        """True if the thread is gone."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def has_vanished(self) -> bool:
        """It is gone, and not because it was closed: it may have told nobody."""
        return self._is_gone and self.state is not EngineState.STOPPED

    @property
    def _is_gone(self) -> bool:
        return self._thread.ident is not None and not self._thread.is_alive()

    def declare_dead(self) -> None:
        """Called from outside when `has_vanished`: who waits for a command is told."""
        self.state, self.stepping = EngineState.FAILED, False
        self._refuse_all_commands()

    def stats(self) -> EngineStats:
        """The snapshot of the last step (at most 50 ms old under load) with the present state."""
        return replace(self._stats, state=self.state.value, stage=self._stage, percent=self._percent)

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def _control(self, action: Callable[[], None], *, when_idle: bool = False, computes: bool = False) -> Future[None]:
        control = Control(action, Future(), when_idle, computes)
        self._put(control)
        return control.done

    def _put(self, command: Command) -> None:
        """A thread that is gone takes no commands; whoever finds that out answers for it."""
        self._commands.put(command)
        if self.state in (EngineState.FAILED, EngineState.STOPPED) or self._is_gone:
            self._refuse_all_commands()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._build()
        except BaseException as error:
            if not self._closing.is_set():
                log.exception("the model could not be loaded")
            self.state = EngineState.STOPPED if self._closing.is_set() else EngineState.FAILED
            self.loaded.set_exception(error if isinstance(error, Exception) else EngineFault("loading has failed"))
            self._refuse_all_commands()
            return
        self.state = EngineState.READY
        self.loaded.set_result(None)
        try:
            while not self._stopping:
                try:
                    self._loop()
                except BaseException as error:  # a panic of a Rust extension is no `Exception`
                    log.exception("the engine loop died")
                    self._recover(runner_is_broken=isinstance(error, StepFailure) or not isinstance(error, Exception))
            self._shut_down()
        except BaseException:
            log.exception("the engine thread ends")
            self.state, self.stepping = EngineState.FAILED, False
            self._tell_all(EngineUnavailable("the engine is failed"))

    def _loop(self) -> None:
        core = self._require_core()
        while not self._stopping:
            self.beat = self._clock()
            runs = self.state in (EngineState.READY, EngineState.DRAINING) and core.has_work
            for command in self._commands.take(0.0 if runs else 1.0):
                self._handle(core, command)
            if self.state in (EngineState.READY, EngineState.DRAINING) and core.has_work:
                self.beat, self.stepping = self._clock(), True
                outputs = core.step()
                self.stepping = False
            else:
                outputs = core.settle()
            try:
                self._snapshot(core)
            finally:  # whatever breaks here, what has ended is told
                if outputs:
                    self._deliver(outputs)
            if core.faulty_requests or core.completed or not self._guard.is_idle:
                self._record_faults(core)
            if not core.has_work:
                for control in self._commands.take_idle():
                    control.act()

    def _handle(self, core: EngineCore, command: Command) -> None:
        if isinstance(command, Submit):
            submission, now = command.submission, self._clock()
            refusal = self._refusal(submission, now)
            if refusal is None:
                try:
                    core.add(replace(submission, suspect=self._guard.is_suspect(submission.fingerprint, now)))
                except EngineError as error:
                    refusal = error
                except BaseException:
                    self._refuse(submission, EngineFault("a fault while this request was queued"))
                    raise
            if refusal is not None:
                self._refuse(submission, refusal)
        elif isinstance(command, End):
            core.end(command.request_id, command.reason, command.stop_reason)
        elif command.when_idle:
            self._commands.keep_for_idle(command)
        else:
            self.beat, self.stepping = self._clock(), command.computes
            command.act()
            self.stepping = False

    def _refusal(self, submission: Submission, now: float) -> EngineError | None:
        if self.state not in (EngineState.READY, EngineState.PAUSED):
            return EngineUnavailable(f"the engine is {self.state.value}", hint="retry in a moment")
        if self._guard.refuses(submission.fingerprint, now):
            self._recorder.poisoned += 1
            return PoisonRequest("this request stopped the engine twice and is refused", hint="change the request")
        return None

    def _record_faults(self, core: EngineCore) -> None:
        """Remember who made a step fail, and what shows that the engine itself was well."""
        guard, now = self._guard, self._clock()
        for faulty in core.faulty_requests:
            guard.blame(faulty.fingerprint, now, proven=faulty.proven)
        if not guard.is_idle:
            guard.ran_well((*core.ran_well(), *core.completed) if guard.wants_evidence else (), now)
            for fingerprint in core.completed:
                guard.ended_well(fingerprint)
        if core.completed:
            self._restarts.worked()
        core.faulty_requests.clear()
        core.completed.clear()

    # -- birth, death and sleep --------------------------------------------------------------------------------------

    def _build(self) -> None:
        model = self._loader(self._config, self._on_progress)
        self._adopt(model)
        self._on_progress("ready", 100.0)

    def _adopt(self, model: LoadedModel) -> None:
        if self.model is None:
            self._recorder = StatsRecorder(max_model_len=model.runner.max_model_len)
        self.model = model
        self._core = EngineCore(self._config, model, self._recorder, self._clock)
        self._snapshot(self._core, now=True)

    def _on_progress(self, stage: str, percent: float) -> None:
        if self._closing.is_set():
            raise EngineUnavailable("the engine was closed while it loaded")
        self._stage, self._percent = stage, percent
        if self._user_progress is not None:
            self._user_progress(stage, percent)

    def _recover(self, *, runner_is_broken: bool) -> None:
        """Tell every waiter, then build a new core, with a new runner where the old one is suspect."""
        core, before = self._require_core(), self.state
        self.stepping = False
        self.state = EngineState.REBUILDING
        self._recorder.restarts += 1
        self._recorder.preemptions += core.scheduler.num_preemptions
        suspects, now = core.suspects(), self._clock()
        for fingerprint in suspects:
            if len(suspects) == 1:
                self._guard.blame(fingerprint, now, proven=False)
            else:
                self._guard.suspect(fingerprint, now)
        fault = EngineFault("the engine restarted while this request ran", hint="send it again")
        self._deliver(core.fail_all(fault))
        model = core.model
        for attempt in range(_REBUILD_TRIES):
            if not self._pause_before_rebuild():
                break
            try:
                if runner_is_broken or attempt:
                    model.runner.close()
                    model = self._loader(self._config, self._on_progress)
                self._adopt(model)
            except BaseException:
                log.exception("rebuilding the engine failed", extra={"attempt": attempt + 1})
                continue
            self._stage, self._percent = "ready", 100.0
            self.state = before
            return
        self.state = EngineState.FAILED
        self._stopping = True

    def _pause_before_rebuild(self) -> bool:
        """False when it has been rebuilt too often, or is closing."""
        delay_s = self._restarts.next_delay_s()
        if delay_s is None:
            log.error("the engine keeps dying and is not rebuilt again")
            return False
        if delay_s:
            self.recovering = True
            log.warning("the engine keeps dying; it is rebuilt after a pause", extra={"delay_s": delay_s})
            self._tell_all(EngineUnavailable("the engine keeps dying", hint="retry in a moment"))
            self._closing.wait(delay_s)
            self.recovering = False
        return not self._closing.is_set()

    def _begin_drain(self) -> None:
        self._switch(EngineState.DRAINING, {EngineState.READY, EngineState.PAUSED, EngineState.DRAINING})

    def _switch(self, target: EngineState, allowed: set[EngineState]) -> None:
        if self.state is not target and self.state not in allowed:
            raise EngineUnavailable(f"the engine is {self.state.value}")
        self.state = target

    def _check_drained(self) -> None:
        if self.state not in (EngineState.DRAINING, EngineState.ASLEEP):
            raise EngineUnavailable("the engine was resumed before it had drained")

    def _fall_asleep(self) -> None:
        self._check_drained()
        core = self._require_core()
        core.scheduler.kv.evict_cached()
        core.model.runner.release_weights()
        self.state = EngineState.ASLEEP

    def _wake_up(self) -> None:
        if self.state is EngineState.ASLEEP:
            self._require_core().model.runner.restore_weights()
            self.state = EngineState.READY

    def _begin_stop(self) -> None:
        self._stopping = True

    def _shut_down(self) -> None:
        core = self._require_core()
        if self.state is not EngineState.FAILED:
            self.state = EngineState.STOPPED
        self._tell_all(EngineUnavailable(f"the engine is {self.state.value}"))
        self._snapshot(core, now=True)
        core.model.runner.close()

    def _tell_all(self, error: EngineUnavailable) -> None:
        """Nobody may wait for what will not come: neither requests of the core nor commands."""
        if self._core is not None:
            self._deliver(self._core.fail_all(error))
        self._refuse_all_commands(error)

    def _refuse_all_commands(self, error: EngineUnavailable | None = None) -> None:
        """Nobody may wait for a thread that is gone."""
        error = error or EngineUnavailable(f"the engine is {self.state.value}")
        refused = self._commands.refuse_all(error)
        if refused:
            self._deliver(refused)

    def _refuse(self, submission: Submission, error: EngineError) -> None:
        self._deliver([EngineOutput(submission.request.request_id, submission.ticket, error, True)])

    def _snapshot(self, core: EngineCore, *, now: bool = False) -> None:
        moment = self._clock()
        if now or moment - self._snapshot_at >= _SNAPSHOT_EVERY_S or not core.has_work:
            self._snapshot_at = moment
            self._stats = core.stats()

    def _require_core(self) -> EngineCore:
        if self._core is None:
            raise EngineUnavailable("the engine is not loaded")
        return self._core
