"""The main module of every process of the server.

``statetap-sglang`` replaces itself with ``python -m statetap_patch.serve``. SGLang spawns its
scheduler from there, and a spawned process imports its parent's main module before anything else:
the one place where import hooks can be set in all of them, and the key be kept out of all logs.
"""

import os
import runpy

from statetap_contract.api_key import api_key

from statetap_patch.cpu import PLATFORM_NAME
from statetap_patch.cpu.import_hooks import install
from statetap_patch.server_key import hand_over, hide_in_log, warn_if_forgeable

_KEY = api_key()

if os.environ.get("SGLANG_PLATFORM") == PLATFORM_NAME:
    install()
if _KEY is not None:
    hide_in_log(_KEY)

if __name__ == "__main__":
    if _KEY is not None:
        warn_if_forgeable()
        hand_over(_KEY)
    runpy.run_module("sglang.launch_server", run_name="__main__")
