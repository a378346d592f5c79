"""Operator micro-benchmarks: which to run, how to time them, where they are kept."""
