"""What is private in PyTorch, by what it is needed for; tried with torch 2.13."""
