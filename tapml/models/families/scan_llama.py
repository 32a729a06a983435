"""Our Llama with a running mean of values (:mod:`tapml.models.scan_llama`)."""

from typing import Any

from tapml.models.families.family import Family


def _register() -> None:
    from tapml.models import scan_llama

    scan_llama.register()


def _class() -> Any:
    from tapml.models.scan_llama import ScanLlamaForCausalLM

    return ScanLlamaForCausalLM


FAMILY = Family(architectures=("ScanLlamaForCausalLM",), register=_register, own_class=_class)
