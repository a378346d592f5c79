"""A real run -> `Measurement`: sensors, windows, protocol, run, store."""
