"""Training steps of four processes on two emulated hosts.

`python integration/hosts` brings up two hosts of `netlab` with a slow link, runs a two-stage
pipeline between them by 1F1B and by eager-1F1B, and writes `docs/results/hosts/schedules.json` and
the table of `docs/several_processes.md`, with the simulator's figures beside the measured ones.

- `job`: the step, and how it is planned;
- `rank`: one process: runs and times steps, and compares them with a single device's;
- `measure`: starts the processes on a lab;
- `report`: the simulation, and the table.
"""
