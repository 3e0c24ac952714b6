"""Ratios to transformers, measured in one process: `make bench`."""
