"""`stratakv bench`: what a user can say to the benches."""

from pathlib import Path
from typing import Annotated

import typer

from stratakv.deploy import bench_commands
from stratakv.deploy.bench_spawn import Tiers
from stratakv.deploy.bench_workload import Order, Workload

bench_app = typer.Typer(help="Measure what the hierarchy gives, and what it costs.", no_args_is_help=True)

_SPAWN = "With --spawn"
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here.")]
Model = Annotated[
    str | None,
    typer.Option(help="Hugging Face directory, or smollm2 (the default).", rich_help_panel=_SPAWN),
]
PageSize = Annotated[
    int | None, typer.Option(min=1, help="Tokens in a page; 16 by default.", rich_help_panel=_SPAWN)
]
DeviceTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Tokens the device pool holds; by default a quarter of all conversations.",
        rich_help_panel=_SPAWN,
    ),
]
HostRatio = Annotated[
    float | None,
    typer.Option(min=0.01, help="Host pool over device pool; 2 by default.", rich_help_panel=_SPAWN),
]
PrefetchPolicy = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="wait_complete by default.", rich_help_panel=_SPAWN),
]
Only = Annotated[
    list[Tiers] | None,
    typer.Option("--only", help="Run this configuration; may be repeated.", rich_help_panel=_SPAWN),
]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="cpu (the default) or cuda.", rich_help_panel=_SPAWN)
]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Further settings as YAML.", rich_help_panel=_SPAWN),
]


@bench_app.command()
def multiturn(
    cluster: Annotated[
        str | None, typer.Argument(metavar="[CLUSTER]", help="Its id; may be left out if there is one.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A cluster of another machine, such as http://host:8000.")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Conversations.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 6,
    new_tokens: Annotated[int, typer.Option(min=1, help="Fresh tokens of a turn.")] = 48,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 4,
    order: Annotated[Order, typer.Option(help="In which order a round asks the clients.")] = Order.FIFO,
    parallel: Annotated[int, typer.Option(min=1, help="Requests of a round at once.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the tokens and the order.")] = 0,
    json: Json = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Hit rate and TTFT by round.")] = None,
    spawn: Annotated[
        bool, typer.Option("--spawn", help="Start a cluster per configuration of the tiers, and end it.")
    ] = False,
    model: Model = None,
    page_size: PageSize = None,
    device_tokens: DeviceTokens = None,
    host_ratio: HostRatio = None,
    prefetch_policy: PrefetchPolicy = None,
    device: Device = None,
    only: Only = None,
    config: Config = None,
) -> None:
    """Growing conversations in rounds: how much of each prompt comes from which tier, and what that is worth."""
    workload = Workload(clients, rounds, new_tokens, output_tokens, order, seed, parallel)
    given = {
        "--model": model,
        "--page-size": page_size,
        "--device-tokens": device_tokens,
        "--host-ratio": host_ratio,
        "--prefetch-policy": prefetch_policy,
        "--device": device,
        "--only": only or None,
        "--config": config,
    }
    if not spawn:
        bench_commands.multiturn_on_running(cluster, url, workload, given, json, plot)
        return
    start = bench_commands.Start(
        model=model,
        page_size=page_size or 16,
        device_tokens=device_tokens,
        host_ratio=host_ratio or 2.0,
        prefetch_policy=prefetch_policy or "wait_complete",
        device=device or "cpu",
        config=config,
    )
    running = {"CLUSTER": cluster, "--url": url}
    bench_commands.multiturn_on_spawned(start, only or list(Tiers), running, workload, json, plot)


@bench_app.command()
def no_reuse(
    model: Annotated[
        str | None, typer.Option(help="Hugging Face directory, or smollm2 (the default).")
    ] = None,
    blocks: Annotated[int, typer.Option(min=3, help="Blocks of each kind.")] = 24,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a block.")] = 2,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 256,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 16,
    page_size: Annotated[int, typer.Option(min=1, help="Tokens in a page.")] = 16,
    seed: Annotated[int, typer.Option(help="Of the tokens.")] = 0,
    json: Json = None,
) -> None:
    """Prompts that never repeat: what the host and store tiers cost when they give nothing back."""
    shape = {
        "pairs": blocks,
        "requests": requests,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "page_size": page_size,
        "seed": seed,
    }
    bench_commands.no_reuse(model, shape, json)
