#!/bin/sh
# Runs a command of a build with the CA bundle and the wheels that were handed into it, if any.
set -eu
if [ -f /inputs/ca.crt ]; then
    export PIP_CERT=/inputs/ca.crt
fi
if [ -d /inputs/wheels ]; then
    export PIP_FIND_LINKS=/inputs/wheels
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
exec "$@"
