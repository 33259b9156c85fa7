#!/bin/sh
# Writes the lock files of the container image: every package by version and SHA-256, for Python 3.11.
#   pip install pip-tools && sh deploy/lock.sh
# Run it with Python 3.11 on x86-64 Linux after changing dependencies, look at the difference, and commit it.
#
# For an image with a GPU add `--extra gpu` (triton) beside `--extra engine`.
#
# torch stands apart: each index serves a build of its own under one version (CPU, CUDA, ROCm), so its hash is true for
# one build only. The lock names the CPU build for Python 3.11 on x86-64 Linux. For another build or machine replace the
# version and hash in torch-cpu.lock by those that `pip download --no-deps torch==...` and `pip hash` give from your index.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options="--quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url --no-emit-trusted-host
  --no-emit-find-links --no-annotate --no-header --resolver=backtracking"
# shellcheck disable=SC2086  # the options are words
pip-compile $options --extra engine --constraint constraints.txt --output-file "$work/all.lock" pyproject.toml
# shellcheck disable=SC2086
pip-compile $options --output-file "$work/build.lock" - <<END
hatchling>=1.27
END
python3 deploy/split_lock.py "$work/all.lock" "$work/build.lock"
