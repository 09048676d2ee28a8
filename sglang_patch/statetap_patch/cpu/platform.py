"""The platform class; imported by SGLang alone."""

from typing import Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.interface import PlatformCapabilities, PlatformEnum, SRTPlatform


class PlainCpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]  # SGLang has no types here
    """A CPU with torch's own attention and eager execution."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        return "native"

    def get_compile_backend(self, mode: Any = None) -> str:  # noqa: ARG002  SGLang's signature
        return "eager"

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Nothing to change: the launcher sets what a CPU needs."""
