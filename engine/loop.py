"""The engine thread: loads the model, runs the step loop, survives its own death. Knows no asyncio.

Commands come in and deliveries go out once per step. When the loop dies every waiter is told at once, what broke is
rebuilt and the loop goes on; a request that does it twice is refused. Only this thread touches core and runner.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any

from engine.commands import Command, Control, End, Submit
from engine.config import EngineConfig
from engine.core import Delivery, EngineCore, Submission
from engine.errors import EngineError, EngineFault, EngineUnavailable, PoisonRequest
from engine.isolation import StepFailure
from engine.ports import LoadedModel, Loader, Progress
from engine.requests import FinishReason
from engine.stats import EngineStats, StatsRecorder

log = logging.getLogger(__name__)
_STRIKES = 2
_REMEMBERED = 1024
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
        deliver: Callable[[list[Delivery]], None],
        *,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._loader, self._deliver, self._clock = config, loader, deliver, clock
        self._user_progress = progress
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._waiting_for_idle: list[Control] = []
        self._strikes: OrderedDict[bytes, int] = OrderedDict()
        self._stopping = False
        self._closing = False
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
        self.loaded: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="esclusa-engine", daemon=True)

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
        return self._control(action)

    def close(self) -> Future[None]:
        """End everything, release the runner, stop the thread; a load under way is given up. `EngineUnavailable` when
        it has stopped before."""
        self._closing = True
        return self._control(self._begin_stop)

    def join(self, timeout_s: float) -> bool:
        """True if the thread is gone."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stats(self) -> EngineStats:
        """The snapshot of the last step (at most 50 ms old under load) with the present state."""
        return replace(self._stats, state=self.state.value, stage=self._stage, percent=self._percent)

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def _control(self, action: Callable[[], None], *, when_idle: bool = False) -> Future[None]:
        control = Control(action, Future(), when_idle)
        self._put(control)
        return control.done

    def _put(self, command: Command) -> None:
        """A thread that is gone takes no commands; whoever finds that out answers for it."""
        self._commands.put(command)
        if self.state in (EngineState.FAILED, EngineState.STOPPED):
            self._refuse_all_commands()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._build()
        except Exception as error:
            if not self._closing:
                log.exception("the model could not be loaded")
            self.state = EngineState.STOPPED if self._closing else EngineState.FAILED
            self.loaded.set_exception(error)
            self._refuse_all_commands()
            return
        self.state = EngineState.READY
        self.loaded.set_result(None)
        while not self._stopping:
            try:
                self._loop()
            except Exception as error:
                log.exception("the engine loop died")
                self._recover(runner_is_broken=isinstance(error, StepFailure))
        self._shut_down()

    def _loop(self) -> None:
        core = self._require_core()
        while not self._stopping:
            self.beat = self._clock()
            runs = self.state in (EngineState.READY, EngineState.DRAINING) and core.has_work
            self._take_commands(core, block=not runs)
            if self.state in (EngineState.READY, EngineState.DRAINING) and core.has_work:
                self.beat, self.stepping = self._clock(), True
                deliveries = core.step()
                self.stepping = False
                if core.culprits or core.completed:
                    self._judge(core)
            else:
                deliveries = core.settle()
            self._snapshot(core)
            if deliveries:
                self._deliver(deliveries)
            if self._waiting_for_idle and not core.has_work:
                controls, self._waiting_for_idle = self._waiting_for_idle, []
                for control in controls:
                    control.act()

    def _take_commands(self, core: EngineCore, *, block: bool) -> None:
        try:
            command = self._commands.get(timeout=1.0) if block else self._commands.get_nowait()
            while True:
                self._obey(core, command)
                command = self._commands.get_nowait()
        except Empty:
            return

    def _obey(self, core: EngineCore, command: Command) -> None:
        if isinstance(command, Submit):
            submission = command.submission
            refusal = self._refusal(submission)
            if refusal is None:
                try:
                    core.add(replace(submission, suspect=submission.fingerprint in self._strikes))
                except EngineError as error:
                    refusal = error
            if refusal is not None:
                self._deliver([Delivery(submission.request.request_id, submission.ticket, refusal, True)])
        elif isinstance(command, End):
            core.end(command.request_id, command.reason, command.stop_reason)
        elif command.when_idle:
            self._waiting_for_idle.append(command)
        else:
            command.act()

    def _refusal(self, submission: Submission) -> EngineError | None:
        if self.state not in (EngineState.READY, EngineState.PAUSED):
            return EngineUnavailable(f"the engine is {self.state.value}", hint="retry in a moment")
        if self._strikes.get(submission.fingerprint, 0) >= _STRIKES:
            self._recorder.poisoned += 1
            return PoisonRequest("this request stopped the engine twice and is refused", hint="change the request")
        return None

    def _judge(self, core: EngineCore) -> None:
        """Remember who made a step fail; who ends well is cleared."""
        for fingerprint in core.culprits:
            self._strike(fingerprint)
        if self._strikes:
            for fingerprint in core.completed:
                self._strikes.pop(fingerprint, None)
        core.culprits.clear()
        core.completed.clear()

    def _strike(self, fingerprint: bytes, *, certain: bool = True) -> None:
        """Who was not alone gets one strike at most: it is a suspect, runs alone next time, and is then certain."""
        known = self._strikes.get(fingerprint, 0)
        self._strikes[fingerprint] = known + 1 if certain else max(known, 1)
        self._strikes.move_to_end(fingerprint)
        if len(self._strikes) > _REMEMBERED:
            self._strikes.popitem(last=False)

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
        if self._closing:
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
        suspects = core.suspects()
        for fingerprint in suspects:
            self._strike(fingerprint, certain=len(suspects) == 1)
        fault = EngineFault("the engine restarted while this request ran", hint="send it again")
        self._deliver(core.fail_all(fault))
        model = core.model
        for attempt in range(_REBUILD_TRIES):
            try:
                if runner_is_broken or attempt:
                    model.runner.close()
                    model = self._loader(self._config, self._on_progress)
                self._adopt(model)
            except Exception:
                log.exception("rebuilding the engine failed", extra={"attempt": attempt + 1})
                if self._closing:
                    break
                continue
            self._stage, self._percent = "ready", 100.0
            self.state = before
            return
        self.state = EngineState.FAILED
        self._stopping = True

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
        self._deliver(core.fail_all(EngineUnavailable(f"the engine is {self.state.value}")))
        self._refuse_all_commands()
        self._snapshot(core, now=True)
        core.model.runner.close()

    def _refuse_all_commands(self) -> None:
        """Nobody may wait for a thread that is gone."""
        error = EngineUnavailable(f"the engine is {self.state.value}")
        pending: list[Any] = list(self._waiting_for_idle)
        self._waiting_for_idle = []
        with suppress(Empty):
            while True:
                pending.append(self._commands.get_nowait())
        for command in pending:
            if isinstance(command, Submit):
                submission = command.submission
                self._deliver([Delivery(submission.request.request_id, submission.ticket, error, True)])
            elif isinstance(command, Control):
                command.refuse(error)

    def _snapshot(self, core: EngineCore, *, now: bool = False) -> None:
        moment = self._clock()
        if now or moment - self._snapshot_at >= _SNAPSHOT_EVERY_S or not core.has_work:
            self._snapshot_at = moment
            self._stats = core.stats()

    def _require_core(self) -> EngineCore:
        if self._core is None:
            raise EngineUnavailable("the engine is not loaded")
        return self._core
