"""The MOQT session without I/O: what may happen, and what happened."""
