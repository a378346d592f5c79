"""Results as tables, CSV and JSON."""
