"""What is installed here, what JAX and PyTorch see, and what will work: `meshwright doctor`.

- `probes`: asks libraries questions in processes of their own, which end by a deadline.
- `requirements`: what this package needs for each of its extras, and what of it is installed.
- `machine`: the compiler, the launchers, the cores and the memory of this machine.
- `abilities`: what will work, and for everything else what to do.
- `text`: all of it in lines of 80 columns; `examine` does one after the other.
"""
