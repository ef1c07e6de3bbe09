"""Turns a captured program into a `Step`, for any number of microbatches."""
