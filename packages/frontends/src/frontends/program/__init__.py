"""Lower a plan to stage programs and instructions, and check that its parts fit together."""
