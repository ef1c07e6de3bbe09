"""From a step to layers: where they begin and end, which are alike, and what has copies."""
