"""One plan on all ranks: the head sends it and carries it out, the others take it and do the same.

`Leader` stands where a single rank would, in the engine's loop. `Follower` is what a rank other than 0 has instead of
an engine: a thread that waits for the next plan, without a deadline, and carries it out.
"""

import logging
import threading
import time

from stratakv.actors.worker.config import Heartbeat
from stratakv.actors.worker.rank import StepResult
from stratakv.actors.worker.team import Executes
from stratakv.cluster.plan import Plan
from stratakv.cluster.plan_channel import PlanReceiver, PlanSender

_log = logging.getLogger(__name__)


class Leader:
    """Rank 0 of several: carries out a plan here and has all other ranks carry it out too."""

    def __init__(self, rank: Executes, plans: PlanSender):
        self._rank, self._plans = rank, plans

    def execute(self, plan: Plan) -> StepResult:
        """Send `plan` to the others, then carry it out here. ChannelError when one of them is gone."""
        self._plans.send(plan)
        return self._rank.execute(plan)


class Follower:
    """Carries out what comes from `plans` on `rank`, from `start` until the head stops it or something fails."""

    def __init__(self, rank: Executes, plans: PlanReceiver):
        self._rank, self._plans = rank, plans
        self._step = 0
        self._step_began: float | None = None
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        """Tell the head that this rank is ready, and follow."""
        self._thread.start()

    def heartbeat(self) -> Heartbeat:
        """A sign of life of the thread. Raises RuntimeError once it has failed."""
        if self._failed is not None:
            raise RuntimeError(f"this rank ended: {self._failed}") from self._failed
        began = self._step_began
        age = 0.0 if began is None else time.monotonic() - began
        return Heartbeat(self._step, age if self._step else None)

    def stop(self, deadline: float = 5.0) -> None:
        """End after the step it is in. RuntimeError if that takes longer than `deadline` seconds: the step hangs."""
        self._plans.stop()
        if self._thread.ident is not None:
            self._thread.join(deadline)
            if self._thread.is_alive():
                raise RuntimeError(f"this rank is still in step {self._step + 1} after {deadline:g} s")

    def _run(self) -> None:
        try:
            self._plans.hello()
            while (plan := self._plans.receive()) is not None:
                self._step_began = time.monotonic()
                self._rank.execute(plan)
                self._step, self._step_began = plan.number, None
        except BaseException as error:
            self._failed = error
            _log.exception("this rank failed after step %d; its generation ends", self._step)
