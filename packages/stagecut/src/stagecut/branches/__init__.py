"""Cuts graphs with branches into stages, without first putting their nodes into one order."""
