"""Digests of what the packages answer, to see that moving code about changes no answer.

`python integration/frozen freeze FILE` writes one digest for each of `cases.CASES`; after a change,
`python integration/frozen check FILE` names the cases whose answer is another one.
"""
