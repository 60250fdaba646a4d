"""`stratakv replay`: what a workload would find in the cache, counted without a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError

from stratakv.cluster.replay.multiturn import MultiturnSettings, Order
from stratakv.cluster.replay.replica import ReplayError
from stratakv.cluster.replay.run import run_fleet
from stratakv.cluster.replay.settings import FleetSettings, PaceSettings, ReplicaSettings
from stratakv.cluster.replay.side_by_side import run_side_by_side
from stratakv.cluster.replay.sweep import sweep, sweep_steps
from stratakv.cluster.replay.trace import TraceError, read_trace
from stratakv.deploy import replay_view as view
from stratakv.deploy.commands import CommandError
from stratakv.storage.registry import UnknownName

replay_app = typer.Typer(
    help="What a workload would find in the cache, counted without a model.", no_args_is_help=True
)


class Tiers(StrEnum):
    """Which tiers a replay has."""

    DEVICE = "device"
    HOST = "device+host"
    STORE = "device+host+store"
    ALL = "all"
    """Each of the others, one after the other."""


JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there.")]
PlotFile = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the hit rates there.")
]
Seed = Annotated[int, typer.Option(help="Of everything that is drawn at random.")]
Eviction = Annotated[str, typer.Option(metavar="NAME", help="Which page leaves first.")]
WriteTo = Annotated[
    str, typer.Option("--write-policy", metavar="NAME", help="When pages are copied to host.")
]


@replay_app.command("multiturn")
def multiturn_command(
    clients: Annotated[int, typer.Option(help="Conversations at the same time.")] = 48,
    rounds: Annotated[int, typer.Option(help="Turns of each.")] = 60,
    new_tokens: Annotated[int, typer.Option(help="Tokens a client adds in a turn.")] = 4096,
    output_tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 16,
    page_size: Annotated[int, typer.Option(help="Tokens in a page.")] = 64,
    device_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens the device holds.")
    ] = 3_552_768,
    host_ratio: Annotated[
        float, typer.Option(min=0, help="Host memory, as a multiple of the device's.")
    ] = 2.0,
    tiers: Annotated[Tiers, typer.Option(help="The tiers; `all` compares them.")] = Tiers.ALL,
    order: Annotated[
        Order, typer.Option(help="In which order the clients of a round are served.")
    ] = Order.FIFO,
    seed: Seed = 0,
    eviction_policy: Eviction = "lru",
    write_policy: WriteTo = "write_through",
    json: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Growing conversations in rounds: hit rate by round against the ceiling of the workload."""
    with _failures(json, plot):
        workload = MultiturnSettings(
            clients=clients, rounds=rounds, new_tokens=new_tokens, output_tokens=output_tokens,
            page_size=page_size, order=order, seed=seed,
        )  # fmt: skip
        chosen = [t for t in Tiers if t is not Tiers.ALL] if tiers is Tiers.ALL else [tiers]
        host_tokens = int(device_tokens * host_ratio)
        if tiers is not Tiers.DEVICE and host_tokens < page_size <= device_tokens:
            raise ReplayError(
                f"--tiers {tiers} asks for a host tier, and --host-ratio {host_ratio:g} leaves it no page; "
                "raise --host-ratio, or use --tiers device"
            )
        replicas = {
            str(tier): ReplicaSettings(
                page_size=page_size,
                device_tokens=device_tokens,
                host_tokens=0 if tier is Tiers.DEVICE else host_tokens,
                has_store=tier is Tiers.STORE,
                eviction_policy=eviction_policy,
                write_policy=write_policy,
            )
            for tier in chosen
        }
        with view.progress() as bar:
            reports = run_side_by_side(workload, replicas, lambda name: bar.begin(name, workload.requests))
        view.show_reports(reports)
        view.show_rounds(reports)
        if json is not None:
            view.write_json(json, reports if tiers is Tiers.ALL else reports[str(tiers)])
        if plot is not None:
            from stratakv.deploy.replay_plot import plot_rounds  # matplotlib takes a second to import

            plot_rounds(plot, reports)


@replay_app.command("trace")
def trace_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A trace in Mooncake's format, a request a line.")
    ],
    block_tokens: Annotated[int, typer.Option(min=1, help="Tokens in a block of the trace: the page.")] = 512,
    replicas: Annotated[int, typer.Option(min=1, help="Copies of the model.")] = 1,
    router_policy: Annotated[
        str, typer.Option(metavar="NAME", help="How a replica is chosen.")
    ] = "deepest_hit",
    device_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens each device holds.")] = 1
    << 20,
    host_tokens: Annotated[int, typer.Option(min=0, metavar="N", help="Tokens each host holds.")] = 1 << 22,
    store_tokens: Annotated[str, typer.Option(metavar="N|inf", help="Tokens the shared store holds.")] = "0",
    eviction_policy: Eviction = "lru",
    write_policy: WriteTo = "write_through",
    prefill_rate: Annotated[
        float, typer.Option(help="Prompt tokens a replica computes in a second.")
    ] = 20_000,
    decode_rate: Annotated[float, typer.Option(help="Tokens of an answer in a second.")] = 50,
    seed: Seed = 0,
    json: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """A trace of a real service over replicas and a router; with --plot, hit rate against cache size.

    The two rates only tell how many requests are in flight when the router asks for load. The plot is of one memory of
    each size under every eviction policy, beside the offline optimum; --device-tokens and the like do not change it.
    """
    with _failures(json, plot):
        store_pages = _store_pages(store_tokens, block_tokens)
        replica = ReplicaSettings(
            page_size=block_tokens, device_tokens=device_tokens, host_tokens=host_tokens,
            has_store=store_pages != 0, eviction_policy=eviction_policy, write_policy=write_policy,
        )  # fmt: skip
        fleet = FleetSettings(
            replicas=replicas,
            router_policy=router_policy,
            store_pages=store_pages,
            seed=seed,
            pace=PaceSettings(prefill_rate=prefill_rate, decode_rate=decode_rate),
        )
        requests = read_trace(file, block_tokens)
        with view.progress() as bar:
            report = run_fleet(requests, replica, fleet, bar.begin("replay", len(requests)))
        view.show_reports({file.name: report})
        view.show_replicas(report)
        view.show_misses(report)
        if json is not None:
            view.write_json(json, report)
        if plot is not None:
            from stratakv.deploy.replay_plot import plot_sweep  # matplotlib takes a second to import

            with view.progress() as bar:
                swept = sweep(requests, block_tokens, bar.begin("cache sizes", sweep_steps(requests)))
            view.show_sweep(swept)
            plot_sweep(plot, swept)


def _store_pages(tokens: str, page_size: int) -> int | None:
    """Pages of a store of so many tokens; None for a store without end."""
    if tokens == "inf":
        return None
    if not (tokens.isascii() and tokens.isdigit()):
        raise ReplayError(f"--store-tokens is {tokens!r}; give a number of tokens, inf, or 0 for no store")
    return int(tokens) // page_size


@contextmanager
def _failures(*files: Path | None) -> Iterator[None]:
    """What the user can mend ends with one message and exit code 2, before anything runs if it can be known then."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            _fail(f"{file} cannot be written: there is no folder {file.absolute().parent}")
    try:
        yield
    except ValidationError as error:
        _fail("; ".join(_mistake(mistake["loc"], mistake["msg"]) for mistake in error.errors()))
    except (TraceError, ReplayError, UnknownName) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}")


def _mistake(place: tuple[int | str, ...], message: str) -> str:
    flag = "".join(f"--{str(name).replace('_', '-')}: " for name in place[-1:])
    return flag + message.removeprefix("Value error, ")


def _fail(message: str) -> NoReturn:
    raise CommandError(message, 2)
