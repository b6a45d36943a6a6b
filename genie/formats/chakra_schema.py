"""Chakra's messages, built at import from the published field numbers (chakra.proto beside this file has them too).

Building the descriptor here needs no protoc and ties us to no protobuf release. Only fields that Genie reads or writes
are declared; all others are skipped by protobuf. `type` is an int32 on purpose: a node type from the future must be
visible as a number instead of being dropped.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_F = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _F.LABEL_OPTIONAL, _F.LABEL_REPEATED
_PACKAGE: Final = "genie.chakra"

SCALARS: Final = (
    ("double", 3, _F.TYPE_DOUBLE),
    ("float", 5, _F.TYPE_FLOAT),
    ("int32", 7, _F.TYPE_INT32),
    ("int64", 9, _F.TYPE_INT64),
    ("uint32", 11, _F.TYPE_UINT32),
    ("uint64", 13, _F.TYPE_UINT64),
    ("sint32", 15, _F.TYPE_SINT32),
    ("sint64", 17, _F.TYPE_SINT64),
    ("fixed32", 19, _F.TYPE_FIXED32),
    ("fixed64", 21, _F.TYPE_FIXED64),
    ("sfixed32", 23, _F.TYPE_SFIXED32),
    ("sfixed64", 25, _F.TYPE_SFIXED64),
    ("bool", 27, _F.TYPE_BOOL),
    ("string", 29, _F.TYPE_STRING),
    ("bytes", 31, _F.TYPE_BYTES),
)
"""Kinds of attribute values: name, field number (that of the list kind is one more), type."""

_NO_INTEGERS: Final = {"double", "float", "string", "bytes"}

INTEGER_LISTS: Final = frozenset(f"{name}_list" for name, _, _ in SCALARS if name not in _NO_INTEGERS)
"""Which members of an attribute's value are lists of integers or truth values."""


def _field(message: Any, name: str, number: int, kind: int, label: int = _ONE, of: str = "") -> Any:
    field = message.field.add(name=name, number=number, type=kind, label=label)
    if of:
        field.type_name = f".{_PACKAGE}.{of}"
    return field


def _attribute(file: Any) -> None:
    """AttributeProto and the list messages that it may hold."""
    message = file.message_type.add(name="AttributeProto")
    _field(message, "name", 1, _F.TYPE_STRING)
    message.oneof_decl.add(name="value")
    for name, number, kind in SCALARS:
        holder = f"{name.capitalize()}List"
        _field(file.message_type.add(name=holder), "values", 1, kind, _MANY)
        _field(message, f"{name}_val", number, kind).oneof_index = 0
        _field(message, f"{name}_list", number + 1, _F.TYPE_MESSAGE, of=holder).oneof_index = 0


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="genie/chakra.proto", package=_PACKAGE, syntax="proto3")
    _attribute(file)
    metadata = file.message_type.add(name="GlobalMetadata")
    _field(metadata, "version", 1, _F.TYPE_STRING)
    _field(metadata, "attr", 2, _F.TYPE_MESSAGE, _MANY, "AttributeProto")
    node = file.message_type.add(name="Node")
    _field(node, "id", 1, _F.TYPE_UINT64)
    _field(node, "name", 2, _F.TYPE_STRING)
    _field(node, "type", 3, _F.TYPE_INT32)
    _field(node, "ctrl_deps", 4, _F.TYPE_UINT64, _MANY)
    _field(node, "data_deps", 5, _F.TYPE_UINT64, _MANY)
    _field(node, "duration_micros", 7, _F.TYPE_UINT64)
    _field(node, "attr", 10, _F.TYPE_MESSAGE, _MANY, "AttributeProto")
    # In the schema of 2023 this number held the attributes; today it is free. Seeing it tells the age of a file.
    _field(node, "attributes_of_2023", 11, _F.TYPE_BYTES, _MANY)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("AttributeProto", "GlobalMetadata", "Node")
    }


_made: Final = _messages()
AttributeProto: Final[Any] = _made["AttributeProto"]
GlobalMetadata: Final[Any] = _made["GlobalMetadata"]
Node: Final[Any] = _made["Node"]
