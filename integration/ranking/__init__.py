"""Predicted and measured times of collectives and of parallel strategies, on emulated hosts.

`python integration/ranking` brings up a lab of `netlab`, calibrates its links and processors,
predicts and measures, and writes `docs/results/ranking/*.json`, the tables of `docs/costs.md` and a
picture. AutoDDL's figure 4 asks the same question about two clusters: does the model order the
strategies in the same way as the measured times?

- `program`: the computations and collectives of a process;
- `strategies`: the training step of a Transformer layer with each strategy, as programs;
- `rank`: one process of a lab, which executes and times programs;
- `measure`: starts these processes, over torch's gloo or over MPI;
- `compare`: calibrates on half of the sizes, predicts the others, and orders the strategies;
- `report`: the tables and the picture.
"""
