#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --requeue
#SBATCH --signal=TERM@60
# One task is one rank; srun tells each who it is. The folders are on a file system that all nodes share. A job that
# Slurm starts again, after a node failed or its time was over, goes on at the newest checkpoint.
set -euo pipefail
: "${SHARED:?set SHARED to a folder that all nodes see}"
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
WARPTAPE_SECRET=$(python -c "import secrets; print(secrets.token_hex(32))")
export WARPTAPE_SECRET
srun python examples/cluster/train.py --data "$SHARED/digits" --checkpoints "$SHARED/run-$SLURM_JOB_ID"
