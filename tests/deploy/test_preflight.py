"""What is found wrong before anything is started."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from stratakv.deploy import preflight
from stratakv.deploy.preflight import PreflightError
from stratakv.deploy.settings import StrataSettings


def settings(**sections: Any) -> StrataSettings:
    return StrataSettings(**{"store": {"url": None}, **sections})


def model(folder: Path, **config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PreflightError, match=rf"api.port: port {port} .* is in use; .*--port"):
            preflight.check_listen(settings(api={"port": port}))
    preflight.check_listen(settings(api={"port": port}))


def test_a_host_that_is_not_this_machine():
    with pytest.raises(PreflightError, match=r"api.host: '203.0.113.1' is not an address of this machine"):
        preflight.check_listen(settings(api={"host": "203.0.113.1", "port": 0}))


def test_a_causal_model_passes(tmp_path: Path):
    preflight.check_model(model(tmp_path, architectures=["LlamaForCausalLM"]))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('{"architectures": ["BertForMaskedLM"]}', "BertForMaskedLM, not a causal language model"),
        ("{", "cannot be read"),
        (None, "has no config.json"),
    ],
)
def test_a_directory_that_is_no_causal_model(tmp_path: Path, config: str | None, words: str):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(PreflightError, match=words):
        preflight.check_model(str(tmp_path))


@pytest.mark.parametrize("path", ["/no/such/model", "./nothing", "nothing"])
def test_a_model_that_is_not_there(path: str):
    with pytest.raises(PreflightError, match=r"model.path: there is no .*give a Hugging Face directory"):
        preflight.check_model(path)


def test_a_file_is_no_model(tmp_path: Path):
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(PreflightError, match="is a file; give the Hugging Face directory"):
        preflight.check_model(str(file))


def test_a_hub_name_without_a_hub():
    with pytest.raises(PreflightError, match="as a hub name it is not in the cache"):
        preflight.check_model("nobody/nothing")


@pytest.mark.parametrize("name", ["device_memory", "host_memory"])
def test_more_memory_than_the_machine_has(name: str):
    cache = {"device_memory": "1MiB", "host_memory": "0", name: "1000TiB"}
    with pytest.raises(PreflightError, match=rf"cache.*{name}.*lower --"):
        preflight.check_memory(settings(cache=cache, model={"device": "cpu"}))


def test_small_memory_passes():
    preflight.check_memory(settings(cache={"device_memory": "1MiB", "host_memory": "1MiB"}))


def test_a_host_directory_that_is_not_there():
    with pytest.raises(PreflightError, match=r"cache\.host_directory"):
        preflight.check_memory(settings(cache={"host_directory": "/no/such/folder"}))


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ray://127.0.0.1:10001", "neither `auto` nor host:port|is unknown"),
        ("127.0.0.1", "neither `auto` nor host:port"),
        ("127.0.0.1:1", "nobody answers at 127.0.0.1:1"),
    ],
)
def test_a_ray_that_does_not_answer(address: str, words: str):
    with pytest.raises(PreflightError, match=words):
        preflight.running_ray(address)


def test_auto_finds_what_ray_start_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(PreflightError, match="no Ray is running"):
        preflight.running_ray("auto")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        assert preflight.running_ray("auto") == address


def test_a_folder_too_deep_for_sockets(tmp_path: Path):
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    with pytest.raises(PreflightError, match=r"ray.temp_dir: .* makes socket paths of \d+ characters"):
        preflight.check_ray(settings(ray={"temp_dir": deep}))


def test_a_dashboard_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PreflightError, match=r"ray.dashboard_port.*--dashboard-port"):
            preflight.check_ray(settings(ray={"dashboard_port": port}))


def test_heads_that_do_not_divide_over_the_ranks(tmp_path: Path):
    path = model(tmp_path, num_attention_heads=9, num_key_value_heads=3)
    preflight.check_ranks(settings(model={"path": path}, tensor_parallel=3))
    with pytest.raises(PreflightError, match=r"tensor_parallel is 2.* 9 attention heads.* 1, 3, 9 ranks"):
        preflight.check_ranks(settings(model={"path": path}, tensor_parallel=2))


def test_stored_shares_that_do_not_divide_the_kv_heads(tmp_path: Path):
    path = model(tmp_path, num_attention_heads=8, num_key_value_heads=4)
    store = {"url": tmp_path.as_uri(), "head_groups": 4}
    preflight.check_ranks(settings(model={"path": path}, tensor_parallel=2, store=store))
    with pytest.raises(PreflightError, match=r"store\.head_groups is 8 and tensor_parallel is 2"):
        preflight.check_ranks(
            settings(model={"path": path}, tensor_parallel=2, store={**store, "head_groups": 8})
        )
