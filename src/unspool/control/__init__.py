"""Steering a stream between two of its steps."""
