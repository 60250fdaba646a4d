"""What operators see of a request: its task on the Ray dashboard, and its tokens on both metrics endpoints."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e import Cluster, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TEXT = "a text of some length " * 10


def chat(cluster: Cluster) -> None:
    cluster.client.chat.completions.create(
        model="tiny-llama",
        messages=[{"role": "user", "content": TEXT}],
        max_tokens=8,
        extra_body={"ignore_eos": True},
    )


def state(cluster: Cluster, what: str) -> list[dict[str, Any]]:
    """What Ray's state API lists, `tasks` or `actors`."""
    record = cluster.record
    answer = httpx.get(
        f"{record.dashboard_url}/api/v0/{what}",
        params={"detail": True, "limit": 10_000},
        headers={"Authorization": f"Bearer {record.token_file.read_text().strip()}"},
        timeout=30,
    )
    answer.raise_for_status()
    return answer.json()["data"]["result"]["result"]


def tracked(cluster: Cluster) -> dict[str, list[str]]:
    """Names of the tasks that show requests, and the states of each."""
    tasks: dict[str, list[str]] = {}
    for task in state(cluster, "tasks"):
        if task["name"].startswith("generate"):
            tasks.setdefault(task["name"], []).append(task["state"])
    return tasks


def exported(cluster: Cluster) -> str:
    """What all of Ray's metrics ports say together. Ray lists one that only an autoscaler would serve, too."""
    found = Path(cluster.record.directory) / "ray" / "prom_metrics_service_discovery.json"
    ports = [target for group in json.loads(found.read_text()) for target in group["targets"]]
    said = []
    for port in ports:
        try:
            said.append(httpx.get(f"http://{port}/metrics", timeout=30).text)
        except httpx.TransportError:
            continue
    return "\n".join(said)


def dashboard_answers(cluster: Cluster) -> bool:
    """Ray's dashboard is not waited for when a cluster starts."""
    try:
        return httpx.get(cluster.record.dashboard_url, timeout=30).is_success
    except httpx.TransportError:
        return False


def test_a_request_is_a_task_named_after_its_hit(cluster: Cluster):
    eventually(lambda: dashboard_answers(cluster), 120)
    chat(cluster)
    chat(cluster)
    names = {"generate [no hit]", "generate [device hit 75-99%]"}
    eventually(lambda: names <= set(tracked(cluster)), 60)
    eventually(lambda: all(set(states) == {"FINISHED"} for states in tracked(cluster).values()), 60)


def test_actors_say_what_they_are(cluster: Cluster):
    alive = {actor["repr_name"] for actor in state(cluster, "actors") if actor["state"] == "ALIVE"}
    assert "Router(1 replica)" in alive
    assert any(name.startswith("Worker(r0, rank 0, gen ") for name in alive)
    assert any(name.startswith("Gateway(") for name in alive)


def test_tokens_by_tier_and_routes_are_on_both_metrics_endpoints(cluster: Cluster):
    chat(cluster)
    ours = httpx.get(f"{cluster.record.url}/metrics").text
    assert 'stratakv_replica_prompt_tokens_total{replica="0",tier="device"}' in ours
    assert 'stratakv_replica_routes_total{reason="only replica",replica="0"}' in ours
    eventually(lambda: "ray_stratakv_prompt_tokens_total{" in exported(cluster), 120)
    rays = exported(cluster).splitlines()
    assert any(
        line.startswith("ray_stratakv_prompt_tokens_total{") and 'tier="computed"' in line for line in rays
    )
    assert any(
        line.startswith("ray_stratakv_routes_total{") and 'reason="only replica"' in line for line in rays
    )
