"""The search as a problem of choices: costs of nodes and edges, memory, groups, and tied nodes."""
