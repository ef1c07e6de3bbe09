"""Parameters and optimizer state: made, recorded, loaded and put together."""
