"""Throughput and memory of the main job, beside plain QUIC streams of the same octets."""
