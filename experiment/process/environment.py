"""Environment of child processes: an allow list of variables, and a safe import path.

Nothing is imported from the working directory. Only the process that prepares the model gets
secrets: the hub's token, and user and password in its URL or in a proxy's URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import experiment
from experiment.files.code_cache import TORCH_CACHE, torch_cache
from experiment.files.user_cache import TEMPORARY, temporary_files
from experiment.text import URL_USER
from experiment.text.errors import user_error
from experiment.text.redaction import is_secret_name

_NAMES = frozenset(
    re.findall(
        r"\S+",
        """
    HOME USER LOGNAME USERNAME SHELL TERM PATH PWD TMPDIR TEMP TMP LANG LANGUAGE TZ VIRTUAL_ENV
    HOSTNAME CONTAINER KUBERNETES_SERVICE_HOST LIBRARY_PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH
    CC CXX CFLAGS CXXFLAGS LDFLAGS MAX_JOBS ALL_PROXY HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE
    SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE SYSTEMROOT SYSTEMDRIVE WINDIR COMSPEC PATHEXT
    USERPROFILE HOMEDRIVE HOMEPATH APPDATA LOCALAPPDATA PROGRAMDATA PROGRAMFILES
    """,
    )
)
_PREFIXES = (
    "LC_", "LD_", "DYLD_", "XDG_", "PYTHON", "CONDA_", "MALLOC_", "MPL", "PROCESSOR_", "PAGEDKV_",
    "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NCCL_", "HIP_", "ROCR_", "HSA_",
    "GLOO_", "FLASHINFER_", "TORCH", "PYTORCH_", "TRITON_", "ATEN_", "DNNL_", "ONEDNN_", "VLLM_",
    "NUMBA_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "NUMEXPR_", "RAYON_",
    "HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_", "TOKENIZERS_",
)  # fmt: skip


_PROXIES = {"ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY"}
_MOST_PORT = 65_535
# RFC 3986, without a query: other characters of a user and password are percent-encoded.
_ADDRESS = re.compile(
    r"(?P<scheme>https?|socks(?:4a?|5h?))://"
    r"(?:[\w.~!$&'()*+,;=:%-]*@)?"
    r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5})?)?"
    r"(?:/[\w.~!$&'()*+,;=:%@/-]*)?",
    re.ASCII,
)


def child_environment(
    extra: dict[str, str], packages: str | None = None, scratch: Path | None = None
) -> dict[str, str]:
    """Build the environment of a child: UTF-8, with this package on the import path.

    Code compiled by torch is kept in a shared cache, not in the child's temporary directory. That
    variable must not be the first: vLLM changes it, and its process titles need the first one.

    Args:
        extra: additional variables.
        packages: import path for another interpreter; None: ours.
        scratch: directory for temporary files.
    """
    compiled = os.environ.get(TORCH_CACHE) or torch_cache()
    if packages is None:
        root = str(Path(experiment.__file__).resolve().parent.parent)
        path = os.environ.get("PYTHONPATH")
        packages = f"{root}{os.pathsep}{path}" if path else root
    return {
        **_without_users(),
        **({TORCH_CACHE: str(compiled)} if compiled else {}),
        **({"TMPDIR": str(scratch), TEMPORARY: temporary_files()} if scratch else {}),
        "PYTHONUTF8": "1",
        "PYTHONOPTIMIZE": "",  # Transformers reads docstrings on import
        "PYTHONPATH": packages,
        "PYTHONSAFEPATH": "1",  # for its own children too
        "TOKENIZERS_PARALLELISM": "false",
        **extra,
    }


def check_addresses() -> None:
    """Check the hub's address and those of proxies: clients print, or stop at, what is none.

    Raises:
        UserError: one is no address; its value, which may hold a password, is not shown.
    """
    for name, value in os.environ.items():
        proxy = name.upper() in _PROXIES and ("://" in value or "@" in value)
        if value and (name == "HF_ENDPOINT" or proxy) and not _is_address(value, proxy):
            raise user_error("error.no_address", name=name)


def _is_address(value: str, proxy: bool) -> bool:
    if proxy and "://" not in value:
        value = f"http://{value}"
    found = _ADDRESS.fullmatch(value)
    if found is None or int(found["port"] or 0) > _MOST_PORT:
        return False
    return proxy or found["scheme"] in ("http", "https")


@contextmanager
def without_secrets() -> Iterator[None]:
    """Give every process that is started in the block the environment of a child."""
    before, inherited = dict(os.environ), _without_users()
    os.environ.clear()
    os.environ.update(inherited)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def hub_secrets() -> dict[str, str]:
    """Variables that hold secrets for the model hub or its proxy."""
    urls = {name: value for name, value in _inherited() if re.search(URL_USER, value)}
    hub = (pair for pair in os.environ.items() if re.match("HF_|HUGGING_?FACE_", pair[0]))
    return urls | {name: value for name, value in hub if is_secret_name(name)}


def _without_users() -> dict[str, str]:
    """What a child inherits, without users and passwords in URLs."""
    return {name: re.sub(URL_USER, "://", value) for name, value in _inherited()}


def _inherited() -> Iterator[tuple[str, str]]:
    for name, value in os.environ.items():
        known = name.upper() in _NAMES or name.upper().startswith(_PREFIXES)
        if known and name != "VLLM_PLUGINS" and not is_secret_name(name):
            yield name, value
