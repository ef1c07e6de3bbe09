"""All use of private PyTorch interfaces, a module for each purpose; tested with torch 2.13."""
