"""Runs the program of docs/pytorch.md on two emulated hosts, by torchrun.

`python integration/torch_hosts` brings up two hosts of `netlab`, runs the program of the page on
both, and writes `docs/results/hosts/torch.json` and the end of the page, with the output.

- `launch`: runs torchrun on every host of a lab;
- `report`: the record, and the page.
"""
