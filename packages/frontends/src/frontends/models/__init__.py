"""Models for examples and the demo, as a user would write them."""
