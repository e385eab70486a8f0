"""An SDK's own request types as a strict check: lists are read to their end and unknown keys are refused."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict, get_type_hints, is_typeddict


def adapter(kind: Any) -> TypeAdapter[Any]:
    """Validates what ``kind`` allows and nothing else. By default, types ignore unknown keys, and check
    the items of an ``Iterable`` only when they are read."""
    return TypeAdapter(_closed(kind, {}))


def _closed(kind: Any, known: dict[Any, Any]) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        if kind not in known:
            known[kind] = _closed_dict(kind, known)
        return known[kind]
    if origin in (Required, NotRequired, Annotated):
        return _closed(args[0], known)
    if origin in (Union, types.UnionType):
        return Union[tuple(_closed(arg, known) for arg in args if not _is_model(arg))]  # noqa: UP007 - made at run time
    if origin is not None and len(args) == 1 and isinstance(origin, type) and issubclass(origin, Iterable):
        return list[_closed(args[0], known)]
    return kind


def _is_model(kind: Any) -> bool:
    """Replies of the SDK may be sent back as they are; what we send is plain data, and these would let any
    key pass."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(kind) in (Union, types.UnionType):
        return all(map(_is_model, get_args(kind)))
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _closed_dict(kind: Any, known: dict[Any, Any]) -> Any:
    hints = get_type_hints(kind, include_extras=True)
    fields = {
        name: (Required if name in kind.__required_keys__ else NotRequired)[_closed(hint, known)]
        for name, hint in hints.items()
    }
    made = TypedDict(kind.__name__, fields)
    config: ConfigDict = {"extra": "forbid", **getattr(kind, "__pydantic_config__", {})}  # type: ignore[typeddict-item]
    return with_config(config)(made)
