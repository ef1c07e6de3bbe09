#!/bin/sh
# A job for SLURM: `sbatch slurm.sh`. Two nodes with two processes each; every process is a device.
#SBATCH --job-name=meshwright
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --requeue

set -eu
. .venv/bin/activate
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

# --kill-on-bad-exit=0 lets the other processes say who died before they end. A requeued job
# continues from the last checkpoint in the folder, which all nodes have to see.
srun --mpi=pmi2 --kill-on-bad-exit=0 python several_processes.py "${CHECKPOINTS:-checkpoints}"
