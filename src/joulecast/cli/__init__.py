"""The command line: parse, call, show; no arithmetic."""
