"""Data, schedule, workers and checkpoints of a DFlash training."""
