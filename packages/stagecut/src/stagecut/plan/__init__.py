"""Plans stages for layers and a cluster: the stage plan as a value, text, JSON and pictures."""
