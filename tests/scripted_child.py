"""A child that does what its task says; run as ``python -m scripted_child``."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiment.events import Notice, Stage, StageEntered, TurnAwaited
from experiment.process.wire import Wire, serve
from experiment.text.errors import user_error
from experiment.text.messages import message

FOREVER = "import time; time.sleep(600)"


def say(wire: Wire, **params: Any) -> None:
    wire.emit(Notice(text=message("said", **params)))


def rubbish(wire: Wire) -> None:
    print("a library prints to stdout", flush=True)
    os.write(wire._out.fileno(), b"rubbish in the pipe\n\xff\xfe\n{}\n")
    say(wire, n=1)


def secrets(wire: Wire) -> None:
    """A line that is no event and an error, each longer than what is kept, a secret at the cut."""
    secret = os.environ["HF_TOKEN"]
    os.write(wire._out.fileno(), f"{'x' * 960}{secret}\n".encode())
    raise RuntimeError("y" * 460 + secret)


def two_words(wire: Wire) -> None:
    say(wire, n=1)
    say(wire, n=2)


def exit_7(wire: Wire) -> None:
    say(wire, n=1)
    os._exit(7)


def kill_itself(wire: Wire) -> None:
    say(wire, n=1)
    os.kill(os.getpid(), signal.SIGKILL)


def leave_files(wire: Wire) -> None:
    """A file and a directory among the temporary ones, where it is told that they belong."""
    made = Path(tempfile.mkdtemp(prefix="left-"))
    (made / "file").write_bytes(b"x")
    wire.emit(Notice(text=message("said", place=str(made.parent))))
    os._exit(0)


def hang(wire: Wire) -> None:
    say(wire, n=1)
    time.sleep(600)


def chatter(wire: Wire) -> None:
    while True:
        say(wire, n=1)


def ignore_terminate(wire: Wire) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang(wire)


def linger(wire: Wire) -> None:
    """Close the pipe and stay."""
    say(wire, n=1)
    os.close(wire._out.fileno())
    time.sleep(600)


def grandchild(wire: Wire) -> None:
    say(wire, pid=subprocess.Popen([sys.executable, "-c", FOREVER]).pid)
    time.sleep(600)


def stranger(wire: Wire) -> None:
    """Start a process that begins a session of its own, as pools of libraries do."""
    say(wire, pid=subprocess.Popen([sys.executable, "-c", FOREVER], start_new_session=True).pid)
    time.sleep(600)


def heir(wire: Wire) -> None:
    """Die and leave a process behind that holds the pipe open."""
    if (pid := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    say(wire, pid=pid)
    os.kill(os.getpid(), signal.SIGKILL)


def runaway_twice_away(wire: Wire) -> None:
    """Of two sessions in between nobody is left."""
    starts = (
        "import subprocess as s; print(s.Popen({!r}, start_new_session=True, stdout=s.DEVNULL).pid)"
    )
    code = starts.format([sys.executable, "-c", FOREVER])
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, start_new_session=True, stdout=subprocess.PIPE, check=True)
    say(wire, pid=int(done.stdout))
    os.kill(os.getpid(), signal.SIGKILL)


def register_and_die(wire: Wire) -> None:
    """As Intel's and LLVM's OpenMP do, which vLLM is started with where somebody preloads one."""
    name = f"__KMP_REGISTERED_LIB_{os.getpid()}_{os.getuid()}"
    Path("/dev/shm", name).write_bytes(bytes(1024))
    say(wire, name=name)
    wire.mark(StageEntered(arm="paged", stage=Stage.CACHE_READY))
    os.kill(os.getpid(), signal.SIGKILL)


def map_a_file(wire: Wire) -> None:
    """As weights are read, once the file is said to be there."""
    sys.stdin.readline()
    with Path(os.environ["PAGEDKV_MAPS"]).open("rb") as file:
        kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    say(wire, size=len(kept))
    time.sleep(600)


def stages(wire: Wire) -> None:
    for n, stage in enumerate((Stage.START, Stage.LOADED)):
        wire.mark(StageEntered(arm="scripted", stage=stage))
        say(wire, n=n)


def turns(wire: Wire) -> None:
    """Wait for a turn twice, as an arm does before each measured repeat; tell of each that came."""
    say(wire, pid=os.getpid())
    for repeat in (1, 2):
        wire.mark(TurnAwaited(arm="scripted", repeat=repeat))
        say(wire, repeat=repeat, at=time.monotonic_ns())


# Scripts that end by an error.
ERRORS = {
    "fail": RuntimeError("something broke"),
    "refuse": user_error("error.no_arms"),
    "run_out_of_memory": MemoryError(),
    # Of torch's class AcceleratorError.
    "run_out_of_pinned_memory": RuntimeError(
        "CUDA error: out of memory\nCUDA kernel errors might be reported later"
    ),
}
SCRIPTS: dict[str, Callable[[Wire], None]] = {
    "rubbish": rubbish,
    "secrets": secrets,
    "two_words": two_words,
    "exit_7": exit_7,
    "kill_itself": kill_itself,
    "leave_files": leave_files,
    "hang": hang,
    "chatter": chatter,
    "ignore_terminate": ignore_terminate,
    "linger": linger,
    "grandchild": grandchild,
    "stranger": stranger,
    "heir": heir,
    "runaway_twice_away": runaway_twice_away,
    "register_and_die": register_and_die,
    "map_a_file": map_a_file,
    "stages": stages,
    "turns": turns,
}


def main(wire: Wire, task: dict[str, Any]) -> None:
    if task["script"] in ERRORS:
        raise ERRORS[task["script"]]
    SCRIPTS[task["script"]](wire)


if __name__ == "__main__":
    sys.exit(serve("scripted", main))
