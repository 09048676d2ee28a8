#!/usr/bin/env bash
# Resolves requirements/*.in anew and writes requirements/*.lock: versions, and hashes of what is
# published under them. What pip installs is what was resolved here, or it refuses.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${1:-python3}"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/tool"
"$scratch/tool/bin/pip" install --quiet --disable-pip-version-check uv==0.13.9

# Writes a lock from pins on standard input. Arguments: its name, and what it is made from.
lock() {
    {
        echo "# Made by 'make lock' from $2. Do not edit."
        "$scratch/tool/bin/uv" pip compile --quiet --python "$python" --no-deps --generate-hashes \
            --no-header --no-annotate -
    } >"requirements/$1.lock.new"
    mv "requirements/$1.lock.new" "requirements/$1.lock"
}

# What the requirements on standard input come to, in the versions of the main lock. For the oldest
# Python, which needs all that newer ones do, and more.
resolved() {
    "$scratch/tool/bin/uv" pip compile --quiet --python "$python" --python-version 3.11 \
        --no-header --no-annotate --constraint "$scratch/main" -
}

# The environments of a machine. By pip, which finds a CPU build of torch wherever it is kept.
for name in main server peers; do
    "$python" -m venv "$scratch/env-$name"
    "$scratch/env-$name/bin/pip" install --quiet --disable-pip-version-check \
        -r "requirements/$name.in" -r requirements/torch.lock
    "$scratch/env-$name/bin/pip" freeze | grep -v '^torch==' >"$scratch/$name"
    lock "$name" "$name.in" <"$scratch/$name"
done
for name in server-nodeps peers-nodeps; do
    lock "$name" "$name.in" <"requirements/$name.in"
done

# What images of containers hold.
grep -E '^(hatchling|editables)==' "$scratch/main" | resolved | lock build "main.in"
printf '%s\n' flower celery packaging redis | resolved | lock flower "main.in"
for name in worker producer; do
    "$python" infra/requirements_of.py contract store "$name" | resolved |
        lock "$name" "contract, store and $name's pyproject.toml"
done
