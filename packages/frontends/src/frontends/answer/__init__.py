"""The plan that users get, with methods that explain, compare, check and save it."""
