"""Plans made one after the other in one process, to compare with plans of fresh processes.

A plan depends on the step, the cluster and the options, and on nothing that the process planned
before. `python integration/order NAME...` plans each of `plans.CASES` that is named, in that order,
and prints one line of JSON with their plans.
"""
