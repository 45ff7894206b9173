"""A record keeps no home directory, user name, host name or token of whoever made it."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from event_makers import head
from hypothesis import given
from hypothesis import strategies as st

from experiment.commands.main import main
from experiment.config.reading import as_recorded
from experiment.config.schema import make_config
from experiment.events import ArmFailed, ModelPrepared
from experiment.files.bounded_reading import expand_path
from experiment.process.environment import check_addresses
from experiment.record.log import EVENTS_FILE, EventLog, read_record
from experiment.text import Translator
from experiment.text.errors import ExitCode, cut, user_error
from experiment.text.messages import message
from experiment.text.redaction import clean_log, cleaner, in_values, without_names, without_private


def test_a_token_in_an_error_is_not_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", 'hf_a"secret')
    monkeypatch.setenv("HOME", str(tmp_path))
    with EventLog(tmp_path) as log:
        error = f'401 for hf_a"secret in {tmp_path}/cache'
        log.write(ArmFailed(arm="paged", reason=message("failure.exception", error=error)))
    written = (tmp_path / EVENTS_FILE).read_text(encoding="utf-8")
    assert "secret" not in written
    assert "401 for *** in ~/cache" in written


@pytest.mark.usefixtures("alice")
def test_what_a_failure_says_names_nobody(tmp_path: Path) -> None:
    why = "no connection to [box.lab]:2950, says alice in /scratch/alice"
    failed = ArmFailed(arm="alice", reason=message("failure.exception", error=why, n=[why, 3]))
    with EventLog(tmp_path) as log:
        log.write(failed)
    (written,) = (json.loads(line) for line in (tmp_path / EVENTS_FILE).open(encoding="utf-8"))
    clean = "no connection to [<host>]:2950, says <user> in /scratch/$USER"
    assert written["reason"]["params"] == {"error": clean, "n": [clean, 3]}
    assert written["arm"] == "alice"  # a name of ours
    assert failed.reason.params["error"] == why  # whoever runs it is told all of it


NAMED = {
    "/scratch/alice/models": "/scratch/$USER/models",
    "~alice/x and ./alice": "~$USER/x and ./$USER",
    "/mnt/box.lab/x, /mnt/box/x: no": "/mnt/$HOST/x, /mnt/$HOST2/x: no",
    '{"path":"/scratch/alice","why":"no\\nalice/a/b"}': (
        '{"path":"/scratch/$USER","why":"no\\n$USER/a/b"}'
    ),
    "/mnt/alice b/x in /alice.": "/mnt/$USER b/x in /$USER.",
}


@pytest.fixture
def alice(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"USER": "alice", "LOGNAME": "alice", "HOSTNAME": "box.lab", "HOME": "/home/al"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostname", lambda: "box.lab")


@pytest.mark.usefixtures("alice")
@pytest.mark.parametrize("text", NAMED)
def test_names_are_whole_parts_of_paths(text: str) -> None:
    assert without_private(text) == without_names(text) == NAMED[text]
    assert without_names(NAMED[text]) == NAMED[text]


AL = {"HOME": "/home/al", "USER": "alan", "LOGNAME": "alan"}
PASSWORDS = ("http://u:Zq%40zqpw@h/x", "u:Zq%40zqpw@proxy:8", "//:Zq@zqpw@h")
# Variables beside those of alice; a text, and what is left of it.
LEFT: list[tuple[dict[str, str], str, str]] = [
    # Only the whole home.
    (AL, "/home/al/x /home/alice /home/al", "~/x /home/alice ~"),
    (AL, "file:///home/al/x -I/home/al", "file://~/x -I~"),
    (AL, '{"why":"no\\n/home/al"}', '{"why":"no\\n~"}'),
    (AL, "/mnt/home/al/x", "/mnt/home/$USER2/x"),  # no path of that home
    (AL | {"HOME": "/"}, "/home/al/x", "/home/al/x"),
    # A name elsewhere is a word.
    *(({}, text, text) for text in (
        "alice and box", "alice/mine", "/x/alices/alice.txt", "/x/box.labs/boxer", "s=alice"
    )),
    # A usual word names nobody.
    *((dict.fromkeys(("USER", "LOGNAME", "HOSTNAME", "HOST"), name),
       f"/mnt/{name}/models and/or /a/root", f"/mnt/{name}/models and/or /a/root")
      for name in ("data", "root", "a", "")),
    # Users and passwords of URLs, whatever variable they are in.
    *(({"A_VARIABLE": value}, "denied: Zq@zqpw", "denied: ***") for value in PASSWORDS),
    ({}, "GET https://h/x?a=1&X-Amz-Signature=zq1&b=2 why? token=5 and x?page=2",
     "GET https://h/x?*** why? token=5 and x?page=2"),
    # Service tokens by their form.
    *(({}, f"key {token}, task-{token[3:]}", f"key ***, task-{token[3:]}") for token in (
        "hf_" + "a1" * 12, "ghp_" + "B2" * 18, "sk-proj-" + "c3" * 12, "AKIA" + "D4" * 8
    )),
    ({}, "hf_hub_download sk-learn AKIA", "hf_hub_download sk-learn AKIA"),
    # Common words and short numbers are no secrets.
    *(({"MY_TOKEN": value}, f"the arm {value} ended", f"the arm {value} ended")
      for value in ("paged", "password", "12345")),
]  # fmt: skip


@pytest.mark.usefixtures("alice")
@pytest.mark.parametrize(("variables", "text", "left"), LEFT)
def test_what_is_left_of_a_text(
    variables: dict[str, str], text: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if "HOST" in variables:
        monkeypatch.setattr(socket, "gethostname", lambda: variables["HOST"])
    assert without_private(text) == left


@pytest.mark.usefixtures("alice")
def test_a_path_of_a_record_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("/scratch/alice/box.lab", "alice/a/b", "/mnt/box/alice b/x", "/a/$USERS/$HOST9"):
        assert str(expand_path(without_names(text))) == text
    workload = {"prompts_file": "/box/p"}
    config = make_config({"model": {"name": "/scratch/alice/m"}, "workload": workload})
    data = as_recorded(config)
    named = data["model"]["name"], data["workload"]["prompts_file"]
    assert named == ("/scratch/$USER/m", "/$HOST2/p")
    assert as_recorded(make_config(data)) == data  # so the same config may be given again
    for name, value in {"USER": "root", "LOGNAME": "root", "HOME": "/root"}.items():
        monkeypatch.setenv(name, value)
    assert str(expand_path("/scratch/$USER/m")) == "/scratch/$USER/m"  # nobody is called so here


URLS = {
    "http://u:p4ssw0rd@host:9/x?a=b@c": "http://host:9/x?a=b@c",
    "http://u:p'4@host/x": "http://host/x",
    "see https://tok@host, ftp://a:b@c@d/": "see https://host, ftp://d/",
    '{"a":"http://u:p@h","b":"x@y"}': '{"a":"http://h","b":"x@y"}',
    "http://host/a@b and a@b": "http://host/a@b and a@b",
}


@pytest.mark.parametrize("text", URLS)
def test_no_url_has_a_user_or_a_password(text: str) -> None:
    assert without_private(text) == URLS[text]
    told = message("error.file_missing", path=text)
    assert URLS[text] in Translator("en").message(told)


STRANGE = (
    "http://u:zqPASSW#zqWORDS@127.0.0.1:9", "http://u:zqPASSW/zqWORDS@127.0.0.1:9",
    "http://u:zqPASSW zqWORDS@127.0.0.1:9", 'http://u:zqPASSW"zqWORDS@127.0.0.1:9',
    "http://u:zqPASSW?zqWORDS@127.0.0.1:9", "http://127.0.0.1:9/?access_token=zqPASSW",
)  # fmt: skip


@pytest.mark.parametrize("value", [*STRANGE, "http://127.0.0.1:abc", "127.0.0.1", "http://h:99999"])
@pytest.mark.parametrize("name", ["HF_ENDPOINT", "https_proxy"])
def test_an_address_that_is_none_is_refused_without_showing_it(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if value == "127.0.0.1" and name != "HF_ENDPOINT":
        value = "ftp://127.0.0.1"
    monkeypatch.setenv(name, value)
    words = ["--yes", "--offline", "--model", "tiny-gpt2", "--out", str(tmp_path / "out")]
    for lang in ("en", "zh"):
        assert main([*words, "--lang", lang]) == ExitCode.USAGE
        said = capsys.readouterr()
        assert name in said.err
        assert len(said.err.splitlines()) == 1
        assert "zq" not in said.err + said.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "value",
    [
        "http://u:p%23w@proxy.lab:3128", "socks5h://[::1]:1080", "proxy:8080", "none",
        "http://u:p'4!$&()*+,;=@host/", "https://host:/x/y",
    ],
)  # fmt: skip
def test_a_proxy_may_be_any_address(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    check_addresses()


@pytest.mark.parametrize("value", STRANGE)
def test_a_strange_password_is_a_secret_as_a_whole_and_in_parts(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_VARIABLE", value)
    words = " zqPASSW zqWORDS" if "zqWORDS" in value else " zqPASSW"
    assert "zq" not in without_private(f"at {value}:{words}")


@pytest.mark.parametrize("begin", [100, 108, 116, 129])
def test_a_text_that_is_cut_holds_no_beginning_of_a_secret(
    begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "zqsecretvalue")
    text = "-" * begin + "zqsecretvalue http://u:zqpassword@h" + "-" * 400
    said = user_error("error.bad_toml", path=text, line=1).text.params["path"]
    for short in (said, cut(text, begin + 5), cut(text, begin + 28)):
        assert "zq" not in short


def test_a_log_is_cleaned_and_otherwise_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setenv("HOSTNAME", "box-of-mine")
    monkeypatch.setenv("API_KEY", "k-123456")
    path = tmp_path / "paged.log"
    said = b"\xff at /home/somebody/x by somebody@box-of-mine\r\nkey k-123456, somebodyelse"
    path.write_bytes(said)
    clean_log(path)
    assert path.read_bytes() == b"\xff at ~/x by <user>@<host>\r\nkey ***, somebodyelse"
    assert list(tmp_path.iterdir()) == [path]


def test_a_numeric_secret_leaves_numbers_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2 has 124,439,808 parameters, which a password may be, too."""
    monkeypatch.setenv("DB_PASSWORD", "124439808")
    begun, prepared, _ = head()
    prepared = prepared.model_copy(update={"parameters": 124_439_808})
    failed = ArmFailed(
        arm="paged", reason=message("failure.exception", error="124439808!", n=124439808)
    )
    config = {"x": 124439808, "y": "124439808", "z": "91244398080"}
    with EventLog(tmp_path) as log:
        for event in (begun.model_copy(update={"config": config}), prepared, failed):
            log.write(event)
    record = read_record(tmp_path, own=True)
    assert record.damaged_lines == 0
    assert record.of(ModelPrepared) == [prepared]
    assert record.of(ArmFailed)[0].reason.params == {"error": "***!", "n": 124_439_808}
    assert record.started.config == {"x": 124439808, "y": "***", "z": "91244398080"}


TEXTS = st.text(
    st.sampled_from('qjxz01 "\\/\n\t') | st.characters(exclude_categories=["Cs"]), max_size=30
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
)


@given(VALUES, st.text('qjxz0 "\\\n', min_size=6, max_size=9), st.integers(10**5, 10**8))
def test_redacting_changes_texts_alone(value: Any, word: str, number: int) -> None:
    digits = str(number)
    value = [value, f"x{word}x", f"a {digits}", number, {"n": number, "t": digits, "key": word}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_TOKEN", word)
        patch.setenv("B_PASSWORD", digits)
        found = in_values(value, cleaner())
    assert skeleton(found) == skeleton(value)
    for text in texts_of(found):
        assert word not in text
        assert not re.search(rf"(?<!\d){digits}(?!\d)", text)


def skeleton(value: Any) -> Any:
    """A value without the content of its texts."""
    if isinstance(value, dict):
        return {key: skeleton(each) for key, each in value.items()}
    if isinstance(value, list):
        return [skeleton(each) for each in value]
    return "" if isinstance(value, str) else (type(value), repr(value))


def texts_of(value: Any) -> list[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value] if isinstance(value, str) else [t for each in inner for t in texts_of(each)]
