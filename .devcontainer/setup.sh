#!/usr/bin/env bash
# The steps of .devcontainer/Dockerfile, in a clone:
#   setup.sh install VENV BACKEND   the packages, with the build of torch that uv names so (cpu, cu130);
#                                   a torch that VENV already has is kept
#   setup.sh warm VENV MODEL...     into the user's cache: these models with random weights, and the
#                                   compiled code of the engine
set -euo pipefail
cd "$(dirname "$0")/.."
step=$1 venv=$2
shift 2
case $step in
  install)
    test -x "$venv/bin/pip" || python3 -m venv "$venv"  # which makes pip last
    if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
      "$venv/bin/pip" install --no-cache-dir --require-hashes -r .github/requirements.txt
      "$venv/bin/uv" pip install --no-cache --python "$venv/bin/python" --torch-backend "$1" \
        "$(grep '^torch==' constraints.txt)"
    fi
    "$venv/bin/python" -m pip install --no-cache-dir -c constraints.txt .
    ;;
  warm)
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
    cd "$out"
    for model in "$@"; do
      "$venv/bin/pagedkv" --yes --quiet --lang en --offline --model "$model" --max-new-tokens 2 \
        --arms contiguous,paged --out "$out/$model"
    done
    ;;
  *) echo "setup.sh install|warm" >&2; exit 2 ;;
esac
