"""KV cache files, kvcs-kv/1: reading (kvfile) and writing (kvfile_sink) under one name."""

from kvcs.formats.kvfile import (
    FORMAT,
    LAYOUT,
    MAX_TOKENS,
    TOKEN_IDS,
    KvFile,
    KvFileSource,
    tensor_name,
)
from kvcs.formats.kvfile_sink import KvFileSink, write_kv_file

__all__ = [
    "FORMAT",
    "LAYOUT",
    "MAX_TOKENS",
    "TOKEN_IDS",
    "KvFile",
    "KvFileSink",
    "KvFileSource",
    "tensor_name",
    "write_kv_file",
]
