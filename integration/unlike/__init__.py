"""Plans on unlike hosts: beside those of equal hosts among them, by prices and on the clock.

`python integration/unlike` plans a step on random clusters of unlike hosts and on each of their
parts with equal hosts, runs a step on emulated hosts whose devices are slowed down, and writes
`docs/results/unlike.json` and the tables of `docs/unlike_hosts.md`. It has to run as root, as
control groups slow the devices down, and takes half an hour; meanwhile, do no other work.

- `clusters`: random clusters of unlike hosts;
- `simulated`: the step that is planned on them, and the comparison;
- `job`: a process of the step that is run;
- `measured`: starts the processes, each with its share of a core, and times their steps;
- `report`: the record, and the page.
"""
