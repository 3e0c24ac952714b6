"""What transformers runs for `model.generate(custom_generate=<this repository>, trust_remote_code=True)`."""

from unspool import generate_stream


def generate(model, **kwargs):
    """A stream of steps instead of a finished output; takes what `model.generate()` takes."""
    return generate_stream(model, **kwargs)
