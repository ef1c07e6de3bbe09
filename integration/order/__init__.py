"""Makes plans one after the other in one process, to compare them with plans of fresh processes.

A plan depends on the step, the cluster and the options only, not on what the process planned
before. `python integration/order NAME...` plans the named cases of `plans.CASES` in this order, and
prints their plans as one line of JSON.
"""
