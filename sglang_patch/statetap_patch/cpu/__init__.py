"""SGLang on a plain CPU, without the CUDA stack that its wheel asks for.

SGLang's own CPU engine needs ``sgl_kernel``; this platform needs torch alone.
"""

import os
from typing import Final

#: Entry-point name of the platform: set ``SGLANG_PLATFORM`` to it.
PLATFORM_NAME: Final = "statetap_cpu"


def activate() -> str | None:
    """Entry point of the group ``sglang.srt.platforms``.

    Only a server that named this platform gets it: installed beside a GPU server, it stays out of
    the way.
    """
    if os.environ.get("SGLANG_PLATFORM") != PLATFORM_NAME:
        return None
    return "statetap_patch.cpu.platform:PlainCpuPlatform"
