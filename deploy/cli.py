"""The `stratakv` command: what a user can say, and nothing of how it is done."""

import importlib.metadata
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stratakv.deploy import commands, explain
from stratakv.deploy.bench_cli import bench_app
from stratakv.deploy.replay import replay_app
from stratakv.deploy.sources import SettingPath

app = typer.Typer(
    name="stratakv",
    help="An LLM serving cluster on Ray whose KV cache is a memory hierarchy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
model_app = typer.Typer(help="Models that can be fetched by name.", no_args_is_help=True)
config_app = typer.Typer(help="The settings.", no_args_is_help=True)
app.add_typer(model_app, name="model")
app.add_typer(config_app, name="config")
app.add_typer(replay_app, name="replay")
app.command()(explain.explain)
app.add_typer(bench_app, name="bench")

Model = Annotated[str | None, typer.Option(help="Hugging Face directory or hub name, smollm2 or gemma3.")]
Replicas = Annotated[int | None, typer.Option(help="Copies of the model.")]
TensorParallel = Annotated[
    int | None, typer.Option(help="Ranks a copy is split over; what works depends on the heads of the model.")
]
PageSize = Annotated[int | None, typer.Option(help="Tokens in a page.")]
DeviceMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="KV in device memory per rank: 512MiB, 2GiB.")
]
HostMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="KV in host memory per rank; 0 turns it off.")
]
Store = Annotated[str | None, typer.Option(metavar="URL", help="Shared store: file:///directory, or none.")]
StoreCapacity = Annotated[str | None, typer.Option(metavar="SIZE", help="Bytes the store may hold.")]
RouterPolicy = Annotated[str | None, typer.Option(metavar="NAME", help="How a replica is chosen.")]
Host = Annotated[str | None, typer.Option(help="Interface to listen on.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")]
RayAddress = Annotated[str | None, typer.Option(help="A running Ray: auto or host:port. By default our own.")]
DashboardPort = Annotated[int | None, typer.Option(help="Port of the Ray dashboard.")]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings as YAML.")]
Cluster = Annotated[
    str | None, typer.Argument(metavar="[CLUSTER]", help="Its id; may be left out if there is one.")
]

_FLAGS: dict[str, SettingPath] = {
    "model": ("model", "path"),
    "replicas": ("replicas",),
    "tensor_parallel": ("tensor_parallel",),
    "page_size": ("cache", "page_size"),
    "device_memory": ("cache", "device_memory"),
    "host_memory": ("cache", "host_memory"),
    "store": ("store", "url"),
    "store_capacity": ("store", "capacity"),
    "router_policy": ("router", "policy"),
    "host": ("api", "host"),
    "port": ("api", "port"),
    "ray_address": ("ray", "address"),
    "dashboard_port": ("ray", "dashboard_port"),
}


def _flags(given: dict[str, Any]) -> dict[str, tuple[SettingPath, Any]]:
    """Flags of a command as settings, by the name the user knows them by."""
    return {f"--{name.replace('_', '-')}": (path, given[name]) for name, path in _FLAGS.items()}


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """An LLM serving cluster on Ray whose KV cache is a memory hierarchy."""
    if version:
        print(f"stratakv {importlib.metadata.version('stratakv')}")
        raise typer.Exit


@app.command()
def serve(
    model: Model = None,
    replicas: Replicas = None,
    tensor_parallel: TensorParallel = None,
    page_size: PageSize = None,
    device_memory: DeviceMemory = None,
    host_memory: HostMemory = None,
    store: Store = None,
    store_capacity: StoreCapacity = None,
    router_policy: RouterPolicy = None,
    host: Host = None,
    port: Port = None,
    ray_address: RayAddress = None,
    dashboard_port: DashboardPort = None,
    config: Config = None,
    detach: Annotated[bool, typer.Option("--detach", help="Leave it running and return.")] = False,
) -> None:
    """Serve a model over the OpenAI HTTP API."""
    commands.serve(config, _flags(locals()), detach=detach)


@app.command()
def demo(
    model: Model = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster serving at the end.")] = False,
) -> None:
    """Show where a conversation's KV comes from: device, host, and after its worker is killed the store."""
    commands.demo(model, keep=keep)


@app.command()
def status(
    cluster: Cluster = None,
    check: Annotated[
        bool, typer.Option("--check", help="Also look for leaked slots; the cluster must be idle.")
    ] = False,
) -> None:
    """Show the clusters of this user."""
    commands.status(cluster, check=check)


@app.command()
def down(
    cluster: Cluster = None,
    drain: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Time for running answers.")] = 5.0,
) -> None:
    """End a cluster and leave nothing of it."""
    commands.down(cluster, drain)


@model_app.command()
def fetch(name: Annotated[str, typer.Argument(help="smollm2 or gemma3")]) -> None:
    """Fetch a model into the cache and print where it is."""
    commands.fetch(name)


@config_app.command()
def show(
    model: Model = None,
    replicas: Replicas = None,
    tensor_parallel: TensorParallel = None,
    page_size: PageSize = None,
    device_memory: DeviceMemory = None,
    host_memory: HostMemory = None,
    store: Store = None,
    store_capacity: StoreCapacity = None,
    router_policy: RouterPolicy = None,
    host: Host = None,
    port: Port = None,
    ray_address: RayAddress = None,
    dashboard_port: DashboardPort = None,
    config: Config = None,
) -> None:
    """Show every setting, its value and where it came from: default, file, environment or flag."""
    commands.show(config, _flags(locals()))


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except commands.CommandError as error:
        print(f"stratakv: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
