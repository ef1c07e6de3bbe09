"""The parts of a schedule: actions, edges, placements and events."""
