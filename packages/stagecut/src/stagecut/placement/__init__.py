"""The submeshes that a cluster offers, and the hosts and devices that each stage gets."""
