"""Training steps of four processes on two emulated hosts.

`python integration/hosts` brings up two hosts of `netlab` with a slow link, runs a two-stage
pipeline between them with 1F1B and with eager-1F1B, and writes `docs/results/hosts/schedules.json`
and the table of `docs/several_processes.md`, with the simulated times next to the measured ones.

- `job`: the step, and how it is planned;
- `rank`: one process, which runs and times steps, and compares them with those of a single device;
- `measure`: starts the processes on a lab;
- `report`: the simulation, and the table.
"""
