#!/usr/bin/env bash
# Looks the pinned dependencies up in PyPI's list of known vulnerabilities, which takes the internet.
# No part of CI: what it says changes with the list, not with the code.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${1:-python3}"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
# An environment of its own: none of its two dozen dependencies is one of the project's.
"$python" -m venv "$scratch/audit"
"$scratch/audit/bin/pip" install --quiet --disable-pip-version-check pip-audit==2.10.1

# The locks are complete: nothing has to be resolved, so nothing is downloaded or built. Strict, or
# what the list does not tell of would pass for sound.
audit() {
    "$scratch/audit/bin/pip-audit" --strict --disable-pip --no-deps --progress-spinner=off \
        --requirement "$@"
}

# A mirror may answer and know of nothing. This version has been in the list since 2019.
echo "jinja2==2.10" >"$scratch/known.txt"
known="$(audit "$scratch/known.txt" --format=json || true)"
if ! grep -q '"id"' <<<"$known"; then
    echo "PyPI's list of vulnerabilities cannot be had here; nothing was looked up" >&2
    exit 2
fi

code=0
for lock in requirements/*.lock; do
    echo "$lock"
    audit "$lock" || code=1
done
exit "$code"
