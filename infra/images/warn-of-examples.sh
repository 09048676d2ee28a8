#!/bin/sh
# Says at start which passwords and keys are still those of .env.example, then becomes the command.
set -eu
# Grafana has a name of its own for its password, which .env does not have.
for name in $(env | sed -nE '/^GF_/!s/^([A-Z_]*_(PASSWORD|KEY))=change-me.*/\1/p'); do
    echo "statetap: $name is still the one of .env.example, which everybody knows; choose another in .env" >&2
done
exec "$@"
