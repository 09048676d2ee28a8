#!/usr/bin/env bash
# Resolves requirements/main.in and server.in in fresh environments and writes what came out.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${1:-python3}"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
for name in main server; do
    "$python" -m venv "$scratch/$name"
    "$scratch/$name/bin/pip" install --quiet --disable-pip-version-check -r "requirements/$name.in"
    {
        echo "# Made by 'make lock' from $name.in. Do not edit."
        # A CPU build of torch calls itself 2.13.0+cpu; the lock must fit every build.
        "$scratch/$name/bin/pip" freeze | sed -E 's/^(torch==[0-9.]+)\+.*/\1/'
    } >"requirements/$name.lock.new"
    mv "requirements/$name.lock.new" "requirements/$name.lock"
done
