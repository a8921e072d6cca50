"""The bulk fast path over aioquic: many packets at once where all is as usual, the library's own code elsewhere.

Congestion control, pacing, flow control, loss recovery and acknowledgements are the library's, reckoned for many
packets in one step. It is off by a setting, and by itself where the library is not as it is known.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.crypto import CryptoContext
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from aioquic.tls import CipherSuite
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from moqt.config import TransportConfig
from moqt.quic.aioquic_path import PathConnection
from moqt.quic.aioquic_private import CONGESTION_CONTROL, absent
from moqt.quic.bulk_receive import BulkReceiving
from moqt.quic.bulk_send import BulkSending

QUIC_1 = 1

CONNECTION = (
    "_ack_delay",
    "_ack_eliciting_sent_since_receipt",
    "_close_at",
    "_close_pending",
    "_cryptos",
    "_events",
    "_handle_ack_frame",
    "_handshake_confirmed",
    "_handshake_done_pending",
    "_get_or_create_stream_for_send",
    "_idle_timeout",
    "_is_client",
    "_local_max_data",
    "_network_paths",
    "_packet_number",
    "_peer_cid",
    "_probe_pending",
    "_quic_logger",
    "_remote_max_data",
    "_spaces",
    "_spin_bit",
    "_spin_highest_pn",
    "_streams_queue",
    "_write_application",
    "host_cid",
)
LOSS = ("_cc", "_pacer", "_time_of_last_sent_ack_eliciting_packet")
CONTROL = ("_congestion_recovery_start_time", "_congestion_stash", "bytes_in_flight", "ssthresh")
SPACE = (
    "ack_at",
    "ack_eliciting_in_flight",
    "ack_queue",
    "expected_packet_number",
    "largest_received_packet",
    "largest_received_time",
    "received_packets",
    "sent_packets",
)
WINDOW = ("_lower", "_received", "_size")
STREAM = ("is_blocked", "max_stream_data_local", "max_stream_data_remote")
SENDER = (
    "_acked",
    "_acked_fin",
    "_buffer_fin",
    "_buffer_start",
    "_buffer_stop",
    "_pending",
    "_pending_eof",
    "_reset_error_code",
    "buffer_is_empty",
    "reset_pending",
)
RECEIVER = ("_buffer_start", "_final_size", "highest_offset", "is_finished", "stop_pending")
KEYS = ("aead", "hp", "key_phase")


class BulkConnection(BulkSending, BulkReceiving):
    """A connection that sends and receives in bulk."""


@cache
def lacking() -> tuple[str, ...]:
    """Names of what the installed library lacks for the bulk path."""
    configuration = QuicConfiguration(congestion_control_algorithm=CONGESTION_CONTROL)
    quic = PathConnection(configuration=configuration)
    keys = CryptoContext()
    keys.setup(cipher_suite=CipherSuite.AES_128_GCM_SHA256, secret=bytes(32), version=QUIC_1)
    stream, space = QuicStream(stream_id=0), QuicPacketSpace(is_application_data=True)
    checks: tuple[tuple[object, tuple[str, ...]], ...] = (
        (quic, CONNECTION),
        (quic._loss, LOSS),
        (quic._loss._cc, CONTROL),
        (space, SPACE),
        (space.received_packets, WINDOW),
        (stream, STREAM),
        (stream.sender, SENDER),
        (stream.receiver, RECEIVER),
        (keys, KEYS),
        (keys.aead, ("_aead", "_iv")),
        (keys.hp, ("_encryptor", "_is_chacha20")),
        (AESGCM, ("decrypt", "encrypt_into")),
    )
    return tuple(name for thing, names in checks for name in absent(thing, names))


def connection(config: TransportConfig, **arguments: Any) -> PathConnection:
    """A connection of the library's `arguments`: in bulk where that is wanted and the library is as it is known."""
    is_bulk = config.bulk and not lacking()
    return (BulkConnection if is_bulk else PathConnection)(**arguments)
