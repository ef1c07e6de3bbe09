"""The search as a problem of choices: costs of nodes and edges, groups and repeats."""
