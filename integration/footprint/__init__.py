"""What plans that run take of a device's memory, beside what was planned."""
