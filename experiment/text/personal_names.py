"""Replace user and host names in paths by placeholders, and back.

    /scratch/alice/models, on box    →    /scratch/$USER/models
    ~alice/x, /mnt/box/y             →    ~$USER/x, /mnt/$HOST/y

Only whole path components are replaced, because a name may also be a word. Common words and service
accounts are kept: they identify no one. The first component of a relative path with two components
is kept too: ``owner/model`` is a public model id of the hub.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

# Words of programs, machines and paths, service accounts, and words of any text.
COMMON = frozenset(
    re.findall(
        r"\S+",
        """
    root user users admin administrator python linux localhost localdomain runner ubuntu debian
    fedora centos alpine arch vagrant guest nobody jovyan coder node service worker server host
    machine docker container jenkins deploy build builder test tests tester default desktop laptop
    azureuser ec2-user opc pi vm pc mac imac macbook codespace vscode ray slurm hadoop spark airflow
    colab kaggle
    home root mnt media srv opt usr var tmp temp etc bin lib lib64 dev proc sys run boot share
    shared local scratch work works workspace workdir project projects data dataset datasets disk
    disks ssd hdd nvme nfs net lustre gpfs efs vol volume volumes storage store archive backup
    cache caches conda miniconda3 anaconda3 venv env envs src source sources code repo repos git
    model models hub weights checkpoint checkpoints ckpt snapshots blobs refs output outputs out
    result results report reports logs log plots runs config configs docs doc prompts traces trace
    experiment experiments kvsim bench sweep engine gpu gpus cpu cuda nvidia ai ml nlp llm llms
    vllm torch transformers huggingface hf gpt2 gpt pagedkv research lab labs group team public
    password secret changeme postgres mysql redis
    private site-packages dist-packages text plain json html token tokens block blocks step steps
    request requests second seconds and or not no yes he she it is us his her on off in to of at
    by ms ns kb mb gb tb am pm
    """,
    )
)
_MIN_LENGTH = 2  # one character is a drive, an option or a unit
_PART_END = r"(?=\.?(?:[/\s\"'\\:;,)\]}>=&?#|]|$))"  # what follows a path component
# Start of an absolute path, also in JSON strings and after a compiler flag.
ROOTED = r"(?:(?<![\w.~])|(?<=\\[nrt])|(?<=-[A-Z]))"
_RELATIVE_START = r"(?:(?<![\w.~/@+-])|(?<=\\[nrt]))"
_MARKED = re.compile(rf"(?<![^/~])\$(?:USER|HOST)\d?{_PART_END}")


def user_names() -> list[str]:
    """Names of the user, login name first; the home directory may have another name."""
    names = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")]
    with contextlib.suppress(RuntimeError):
        names.append(Path.home().name)
    with contextlib.suppress(ImportError, KeyError):  # not POSIX, or no such user id
        import pwd

        names.append(pwd.getpwuid(os.getuid()).pw_name)
    return _identifying(names)


def host_names() -> list[str]:
    """Names of the machine, with and without its domain."""
    names = [socket.gethostname(), os.environ.get("HOSTNAME", "")]
    return _identifying(chain(names, (name.split(".", 1)[0] for name in names)))


def placeholders() -> dict[str, str]:
    """Placeholder of each name, longest name first."""
    found: dict[str, str] = {}
    for mark, names in (("$USER", user_names()), ("$HOST", host_names())):
        for number, name in enumerate(names, 1):
            found.setdefault(name, mark if number == 1 else f"{mark}{number}")
    return dict(sorted(found.items(), key=lambda pair: -len(pair[0])))


def path_part_pattern(name: str) -> str:
    """Regular expression for a name that is a whole path component."""
    word = re.escape(name)
    # A second slash distinguishes a relative path from ``owner/model``.
    return rf"(?:(?<=[/~]){word}{_PART_END}|{_RELATIVE_START}{word}(?=/[^\s\"'\\/]+/))"


def expand_names(path: str) -> str:
    """Replace placeholders in a recorded path by this machine's names; keep unknown ones."""
    if "$" not in path:
        return path
    names = {mark: name for name, mark in placeholders().items()}
    return _MARKED.sub(lambda found: names.get(found[0], found[0]), path)


def _identifying(names: Iterable[str]) -> list[str]:
    """Names that identify a user or host, without duplicates."""
    kept = (name for name in names if len(name) >= _MIN_LENGTH and name.lower() not in COMMON)
    return list(dict.fromkeys(kept))
