"""From two layouts to unit tasks, routes and a plan."""
