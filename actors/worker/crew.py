"""How the ranks of a replica come together when a worker starts, and what each does from then on.

Rank 0 opens the store of the process groups and the plan channel, and publishes where they are; the others come there.
`gather` returns when all are in the groups.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from stratakv.actors.settings import ModelSettings
from stratakv.actors.worker.checkpoint import read_config
from stratakv.actors.worker.config import WorkerConfig
from stratakv.actors.worker.gloo import GlooTeam, connect_store, open_store
from stratakv.actors.worker.lockstep import Follower, Leader
from stratakv.actors.worker.model import Model
from stratakv.actors.worker.sharding import load_sharded, split_for
from stratakv.actors.worker.split import HeadSplit, split_of
from stratakv.actors.worker.team import Alone, Executes, Team
from stratakv.cluster.plan_channel import PlanReceiver, PlanSender
from stratakv.cluster.rendezvous import Meeting

_LOST = 6.0
"""How many times `heartbeat.timeout` a head may be silent before a rank gives it up: the supervisor comes first."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The ranks of a replica, seen from one of them. `close` leaves them; the worker ends before."""

    team: Team
    deadline: float
    sender: PlanSender | None = None
    """the plan channel, on rank 0 of several"""
    receiver: PlanReceiver | None = None
    """the plan channel, on the others"""

    def split(self, directory: Path) -> HeadSplit:
        """How the heads of the model in `directory` are dealt out over the ranks. ModelError."""
        config = read_config(directory)
        if self.team.ranks > 1:
            return split_for(config, self.team.ranks)
        return split_of(config.get_text_config().to_dict(), 1) or HeadSplit(1, 1, 1)

    def load(self, settings: ModelSettings) -> Model:
        """The model, or this rank's share of it. ModelError."""
        if isinstance(self.team, GlooTeam):
            return Model.load(settings, partial(_load_share, self.team))
        return Model.load(settings)

    def lead(self, rank: Executes) -> Executes:
        """Rank 0: what carries plans out on all ranks. Waits until the others are ready; ChannelError names who is
        not."""
        if self.sender is None:
            return rank
        self.sender.await_ranks(self.deadline)
        return Leader(rank, self.sender)

    def follow(self, rank: Executes) -> Follower:
        """The other ranks: what carries out the head's plans on `rank`, once started."""
        assert self.receiver is not None
        return Follower(rank, self.receiver)

    def close(self) -> None:
        """Rank 0 lets the others go; each leaves the groups. May be called more than once."""
        for channel in (self.sender, self.receiver):
            if channel is not None:
                channel.close()
        self.team.close()


def gather(config: WorkerConfig, meeting: Meeting) -> Crew:
    """Bring the ranks of this generation together. RankMissing or TimeoutError after `config.start_timeout` seconds."""
    deadline = config.start_timeout
    if config.ranks == 1:
        return Crew(Alone(), deadline)
    backend = "gloo" if _on_cpu(config.model) else "cpu:gloo,cuda:nccl"
    form = partial(GlooTeam, rank=config.rank, ranks=config.ranks, backend=backend, deadline=deadline)
    if config.rank == 0:
        sender = PlanSender(config.generation, config.ranks, config.heartbeat.interval)
        store = open_store()
        meeting.publish(sender.rendezvous(store.port))
        return Crew(form(store), deadline, sender=sender)
    found = meeting.wait(deadline)
    receiver = PlanReceiver(found, config.rank, _LOST * config.heartbeat.timeout)
    return Crew(form(connect_store(found.store_port, deadline)), deadline, receiver=receiver)


def _on_cpu(settings: ModelSettings) -> bool:
    return settings.device == "cpu" or not torch.cuda.is_available()


def _load_share(
    team: GlooTeam, directory: Path, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
) -> Any:
    network = load_sharded(directory, config, dtype, device, rank=team.rank, ranks=team.ranks)
    team.meet("weights")  # the first forward is a collective, and those have a short timeout
    return network
