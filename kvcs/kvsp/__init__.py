"""What KVCS takes from KVSP: descriptors, identifiers, codecs and sections."""
