"""Predicted against measured time of collectives and of parallel strategies, on emulated hosts.

`python integration/ranking` brings up a lab of `netlab`, calibrates its links and processors,
predicts and measures, and writes `docs/results/ranking_*.json`, the tables of `docs/costs.md` and a
picture. AutoDDL's figure 4 asks the same of two clusters: does the model order the strategies as
the clock does?

- `program`: what a process computes and sends, and what `costmodel` says it takes;
- `strategies`: a Transformer layer's training step under each strategy, as programs;
- `rank`: one process of a lab, which executes and times programs;
- `measure`: starts these processes, through torch's gloo or through MPI;
- `compare`: calibrates on a half of the sizes, predicts the rest, and orders the strategies;
- `report`: the tables and the picture.
"""
