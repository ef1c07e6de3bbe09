"""Points measured on a machine, and fits of the model's numbers to them."""
