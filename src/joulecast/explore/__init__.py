"""What follows from predictions: spaces, sweeps, trade-offs, recommendations and whole runs."""
