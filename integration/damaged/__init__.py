"""Damaged files: a reader of a saved value returns a value, or raises an error of its package.

- `damage`: changes a file a little, as JSON, as text or as bytes, in ways that readers forget.
- `readers`: everything in the packages that reads what somebody else may have written, each with
  files that are right.

`tests` damages each file 100 times by day, and 10,000 times under `HYPOTHESIS_PROFILE=nightly`.
"""
