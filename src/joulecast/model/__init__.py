"""How long, how much: pure functions on arrays from op tables and GPUs to time, power, energy, memory."""
