"""MOQT draft-22 on the wire: octets to values and back, without I/O."""
