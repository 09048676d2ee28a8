"""The main module of every process of the server.

``statetap-sglang`` replaces itself with ``python -m statetap_patch.serve``. SGLang spawns its
scheduler from there, and a spawned process imports its parent's main module before anything else:
the one place where import hooks can be set in all of them.
"""

import os
import runpy

from statetap_patch.cpu import PLATFORM_NAME
from statetap_patch.cpu.import_hooks import install

if os.environ.get("SGLANG_PLATFORM") == PLATFORM_NAME:
    install()

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
