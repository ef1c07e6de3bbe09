"""Which devices and hosts a stage gets."""
