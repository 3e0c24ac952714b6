"""The five stages of a run. Each is a generator that yields events and returns the record the next one needs."""

from unspool.stages.configure import configure
from unspool.stages.constraints import constraints
from unspool.stages.decode import decode
from unspool.stages.inputs import inputs
from unspool.stages.prefill import prefill

__all__ = ["configure", "constraints", "decode", "inputs", "prefill"]
