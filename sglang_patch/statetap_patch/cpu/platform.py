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

    def post_load_model(self, model: Any) -> None:  # noqa: ARG002  SGLang's signature
        """Lets DeepSeek's attention (MLA) run on torch's own.

        SGLang chooses among its forms of MLA by the name of the attention backend, and treats one
        it does not know as triton's: a prompt's start gets full keys and values. This backend
        reads them back from the cache, where MLA keeps the latent alone. The absorbed form works
        on the latent, and is right for every pass.
        """
        # Not at the top: this file is imported long before any model. By now SGLang has imported
        # all of its model files, this module with them, so that the import costs nothing, whatever
        # the model; and no forward pass has asked for the form yet.
        from sglang.srt.models.deepseek_common.attention_backend_handler import (  # noqa: PLC0415
            AttentionBackendRegistry,
            AttnForwardMethod,
        )

        AttentionBackendRegistry.register(
            self.get_default_attention_backend(), lambda *_: AttnForwardMethod.MLA
        )
