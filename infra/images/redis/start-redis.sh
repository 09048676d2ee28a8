#!/bin/sh
# Redis for the containers of its network: with a password, which stands in no command line.
set -eu
case "${REDIS_PASSWORD:-}" in
    "" | *[!A-Za-z0-9_-]*)
        echo "statetap: REDIS_PASSWORD must be letters, digits, - and _, since it becomes part of an address; mend it in .env" >&2
        exit 2
        ;;
esac
exec redis-server - <<END
include /etc/statetap/redis.conf
bind * -::*
dir /data
maxmemory ${REDIS_MEMORY:-1gb}
requirepass $REDIS_PASSWORD
END
