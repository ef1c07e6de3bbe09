"""Digests of answers of the packages, to check that refactoring changes no answer.

`python integration/frozen freeze FILE` writes a digest for each of `cases.CASES`; after a change,
`python integration/frozen check FILE` names the cases whose answer has changed.
"""
