"""The cache that a definition asks for: an opaque object of a runtime that is not here."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache as _Paged
from tvm.relax.frontend.nn.llm.kv_cache import RopeMode

__all__ = ["PagedKVCache", "RopeMode"]


class PagedKVCache(_Paged):
    """A cache of pages."""

    @staticmethod
    def create_generic(*, name: str = "paged_kv_cache", **asked: Any) -> PagedKVCache:
        """An object that only a runtime can make; `asked` has its sizes."""
        kind = relax.StringImm(asked["attn_kind"])
        dtype = relax.DataTypeImm(asked["dtype"])
        made = relax.call_pure_packed(
            "mlc.create_paged_kv_cache_generic", kind, dtype, ty_args=relax.ObjectType()
        )
        return PagedKVCache(_expr=made, _name=name)
