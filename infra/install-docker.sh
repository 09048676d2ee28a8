#!/usr/bin/env bash
# What tests/compose needs beyond Python, on Debian and its kin. Where it cannot be had, the tests
# say that they are skipped, and why.
set -euo pipefail
missing=()
command -v dockerd >/dev/null || missing+=(docker.io)
{ docker compose version || command -v docker-compose; } >/dev/null 2>&1 || missing+=(docker-compose)
command -v debootstrap >/dev/null || missing+=(debootstrap)
[ ${#missing[@]} = 0 ] && exit
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "${missing[*]} missing, and only root can install it, with apt-get" >&2
    exit
fi
# The tests start an engine of their own; runlevel 1 keeps the package from starting another.
{ apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"; } ||
    echo "could not install ${missing[*]}" >&2
