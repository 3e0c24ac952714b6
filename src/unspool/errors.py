"""What unspool raises.

```
UnspoolError
├── ArgumentError      (ValueError)           an argument is wrong; raised at the call
├── UnsupportedError   (NotImplementedError)  the call is sensible, but can't be done; raised at the call
├── CriterionError     (ValueError)           a processor or criterion returned something unusable
├── CacheError         (ValueError)           a cache can't do what the run needs of it
├── SinkError          (RuntimeError)         a sink was used in a way it doesn't allow
└── StreamError        (RuntimeError)         a stream was used in a way it doesn't allow
```

Whatever a model, processor, criterion or sink raises by itself passes through unchanged, with a note
(`Exception.add_note`) that names the stage it came from.
"""

__all__ = [
    "ArgumentError",
    "CacheError",
    "CriterionError",
    "SinkError",
    "StreamError",
    "UnspoolError",
    "UnsupportedError",
]


class UnspoolError(Exception):
    """The base of all errors that unspool raises itself."""


class ArgumentError(UnspoolError, ValueError):
    """An argument can't be used. The message names it, what was given, and what would do."""


class UnsupportedError(UnspoolError, NotImplementedError):
    """The call makes sense, but not for this model, method or cache. The message says what would work."""


class CriterionError(UnspoolError, ValueError):
    """A logits processor or stopping criterion returned a value of a wrong kind or shape."""


class CacheError(UnspoolError, ValueError):
    """A cache can't be cut, expanded or continued as the run needs."""


class SinkError(UnspoolError, RuntimeError):
    """A sink was opened twice, or is not a sink."""


class StreamError(UnspoolError, RuntimeError):
    """A stream can't do this now: it is over, or steps on another thread."""
