"""Where weights come from, against a real server on this machine that plays the hub."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mini_hub import MiniHub

from experiment.config.reading import load_config
from experiment.config.schema import Config
from experiment.events import Event, Notice, Progress
from experiment.model import hub
from experiment.model.builtin import build_model
from experiment.model.hub import HubModel, HubUnavailableError, download, wanted_files
from experiment.model.source import find_model, text_warning, weight_files
from experiment.text import Translator
from experiment.text.errors import UserError, user_error


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEDKV_CACHE", str(tmp_path_factory.mktemp("built")))
        return build_model("tiny-gpt2", 0, 0.08)


@pytest.fixture(autouse=True)
def clean_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches, and no hub but those of this file."""
    from huggingface_hub import constants

    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / "pagedkv"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{_free_port()}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(hub, "POLL_S", 0.02)
    return tmp_path


@pytest.fixture
def mini(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniHub]:
    files = {
        path.name: path.read_bytes() for path in tiny.iterdir() if path.name != "manifest.json"
    }
    served = MiniHub({**files, "README.md": b"not wanted", "onnx/model.onnx": b"not wanted"})
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    yield served
    served.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _config(name: str, **model: Any) -> Config:
    return Config.model_validate({"model": {"name": name, **model}})


def _refused(name: str, **model: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        find_model(_config(name, **model), lambda event: None)
    return caught.value


def _downloads(events: list[Event]) -> list[Progress]:
    return [
        event
        for event in events
        if isinstance(event, Progress) and event.task.key == "prepare.download"
    ]


def test_a_slow_hub_leads_to_a_download_with_progress(mini: MiniHub) -> None:
    mini.pause_s = 0.02
    events: list[Event] = []
    seen: list[list[str]] = []

    def accept(directory: Path) -> None:
        seen.append(sorted(path.name for path in directory.iterdir()))

    source = find_model(_config("lab/tiny"), events.append, accept)
    assert source.kind == "hub"
    assert (source.directory / "model.safetensors").read_bytes() == mini.files["model.safetensors"]
    assert seen == [["config.json"]]  # refusals come before the weights
    assert not (source.directory / "README.md").exists()
    progress = _downloads(events)
    done = [event.done for event in progress]
    assert done == sorted(done)
    assert len({*done}) > 3
    assert {event.total for event in progress} == {
        sum(len(data) for name, data in mini.files.items() if name.endswith((".json", "tensors")))
    }
    assert done[-1] == progress[-1].total


def test_what_was_downloaded_is_found_without_the_hub(mini: MiniHub) -> None:
    find_model(_config("lab/tiny"), lambda event: None)
    asked = len(mini.requests)
    source = find_model(_config("lab/tiny", offline=True), lambda event: None)
    assert source.kind == "hub_cache"
    assert weight_files(source.directory)
    assert len(mini.requests) == asked


def test_half_a_snapshot_in_the_cache_is_not_taken_for_a_model(mini: MiniHub) -> None:
    source = find_model(_config("lab/tiny"), lambda event: None)
    (source.directory / "model.safetensors").unlink()
    assert _refused("lab/tiny", offline=True).text.key == "error.model.offline"
    assert find_model(_config("lab/tiny"), lambda event: None).kind == "hub"


def test_a_model_refused_by_its_config_is_not_downloaded(mini: MiniHub) -> None:
    def refuse(directory: Path) -> None:
        raise user_error("error.model.latent", model="lab/tiny")

    with pytest.raises(UserError):
        find_model(_config("lab/tiny"), lambda event: None, refuse)
    assert not [line for line in mini.requests if "safetensors" in line]


def test_no_such_model_at_the_hub(mini: MiniHub) -> None:
    error = _refused("lab/other")
    assert error.text.key == "error.model.no_such_model"
    assert error.text.params["endpoint"] == mini.url


def test_a_gated_model_says_what_to_do(mini: MiniHub) -> None:
    mini.refuse = 403
    assert _refused("lab/tiny").text.key == "error.model.gated"


def test_weights_in_another_format_are_refused(mini: MiniHub) -> None:
    mini.files["pytorch_model.bin"] = mini.files.pop("model.safetensors")
    assert _refused("lab/tiny").text.key == "error.model.no_safetensors"


def test_a_download_that_stalls_counts_as_silence(mini: MiniHub) -> None:
    mini.hang_at = 4 * hub.PIECE_BYTES
    files = wanted_files({name: len(data) for name, data in mini.files.items()})
    events: list[Event] = []
    started = time.monotonic()
    with pytest.raises(HubUnavailableError) as caught:
        download(HubModel("lab/tiny", files), events.append, lambda _: None, stall_s=1.0)
    assert time.monotonic() - started < 8
    assert caught.value.tried.key == "prepare.tried_stalled"
    assert max(event.done for event in _downloads(events)) >= mini.hang_at


def test_a_hub_that_is_not_there_is_noticed_at_once() -> None:
    started = time.monotonic()
    error = _refused("lab/tiny")
    assert time.monotonic() - started < 5
    assert error.text.key == "error.model.offline"
    assert error.text.params["tried"].key == "prepare.tried_failed"


def test_a_hub_whose_address_has_a_password_is_named_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"127.0.0.1:{_free_port()}"
    monkeypatch.setenv("HF_ENDPOINT", f"http://user:zqmarker@{address}")
    said = Translator("en").message(_refused("some/model").text)
    assert f"http://{address}" in said
    assert "zqmarker" not in said


def test_a_hub_that_never_answers_is_given_up_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub, "ASK_TIMEOUT_S", 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        started = time.monotonic()
        error = _refused("lab/tiny")
    assert time.monotonic() - started < 10
    assert error.text.params["tried"].key == "prepare.tried_silent"


@pytest.mark.parametrize("listing", [b"<html>log in first</html>", b"[]", b"{}"])
def test_a_login_page_is_no_hub(mini: MiniHub, listing: bytes) -> None:
    mini.listing = listing
    error = _refused("lab/tiny")
    assert error.text.key in ("error.model.offline", "error.model.no_config")


def test_offline_mode_asks_nobody(mini: MiniHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    assert _refused("lab/tiny", offline=True).text.params["tried"].key == "prepare.tried_nothing"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert _refused("lab/tiny").text.params["tried"].key == "prepare.tried_nothing"
    assert mini.requests == []


@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2"])
def test_gpt2_offline_is_built_and_said_so(
    name: str, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiment.model import source as module

    built: list[str] = []

    def build(recipe: str, *args: Any) -> Path:
        built.append(recipe)
        return tiny

    monkeypatch.setattr(module, "build_model", build)
    events: list[Event] = []
    source = find_model(_config(name), events.append)
    assert (source.kind, built) == ("random", ["gpt2"])
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert [text.key for text in notices] == ["prepare.offline_gpt2"]
    assert notices[0].params["tried"].key == "prepare.tried_failed"


def test_a_local_directory_is_used_as_it_is(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "mine")
    source = find_model(_config(str(tmp_path / "mine")), lambda event: None)
    assert (source.kind, source.directory) == ("local", tmp_path / "mine")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("./absent", "file_missing"),
        ("~/absent-model", "file_missing"),
        ("/absent/model", "file_missing"),
        ("a/b/c", "file_missing"),
        ("C:\\models\\gpt2", "file_missing"),
        (".", "no_config"),
        ("two words", "bad_name"),
        ("x" * 5000, "bad_name"),
        ("null\0byte", "bad_name"),
    ],
)
def test_names_that_cannot_be(
    name: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _refused(name).text.key.split(".")[-1] == key


def test_one_set_of_weights_is_wanted() -> None:
    sharded = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = "model.safetensors.index.json"
    both = dict.fromkeys(["config.json", "consolidated.safetensors", index, *sharded], 1)
    assert set(wanted_files(both)) == {"config.json", index, *sharded}
    whole = {**both, "model.safetensors": 1}
    assert set(wanted_files(whole)) == {"config.json", "model.safetensors"}


def test_before_anything_is_loaded_it_is_known_whether_the_text_may_mean_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiment.model.source._cached", lambda name: None)

    def warning(name: str, offline: bool = False) -> str | None:
        config = load_config(None, {"model.name": name, "model.offline": offline})
        found = text_warning(config)
        return found.key if found else None

    assert warning("tiny-llama") == "model.random_text"
    assert warning("gpt2") == "model.maybe_random"
    assert warning("gpt2", offline=True) == "model.random_text"
    assert warning("gpt2-medium") is None
    monkeypatch.setattr("experiment.model.source._cached", lambda name: tmp_path)
    assert warning("gpt2") is None
