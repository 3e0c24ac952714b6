"""The settings of a generation that have an option on the command line."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, NamedTuple

from unspool.errors import ArgumentError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["ENOUGH_TOKENS", "SETTINGS", "Setting", "parsed", "without_effect"]

ENOUGH_TOKENS = 512


class Setting(NamedTuple):
    """A setting of `GenerationConfig` (or the seed) that has an option here."""

    panel: str
    kind: Any
    help: str


SETTINGS = {
    "max_new_tokens": Setting("Length", int, f"Most new tokens; {ENOUGH_TOKENS} if no length is given."),
    "min_new_tokens": Setting("Length", int, "Fewest new tokens."),
    "max_length": Setting("Length", int, "Most tokens, those of the prompt included."),
    "min_length": Setting("Length", int, "Fewest tokens, those of the prompt included."),
    "max_time": Setting("Length", float, "Most seconds."),
    "stop_strings": Setting("Length", list[str], "Text that ends the answer. May be repeated."),
    "eos_token_id": Setting("Length", int, "The token that ends the answer, instead of the model's own."),
    "do_sample": Setting("Sampling", bool, "Draw tokens at random, or always take the likeliest."),
    "temperature": Setting("Sampling", float, "Below 1 the likely gets likelier, above 1 less so."),
    "top_k": Setting("Sampling", int, "Draw from this many of the likeliest tokens."),
    "top_p": Setting("Sampling", float, "Draw from the likeliest tokens that together have this probability."),
    "min_p": Setting("Sampling", float, "Draw from tokens at least this fraction as likely as the likeliest."),
    "top_h": Setting("Sampling", float, "Draw from tokens that keep this fraction of the entropy."),
    "typical_p": Setting("Sampling", float, "Draw from the most typical tokens that together have this probability."),
    "epsilon_cutoff": Setting("Sampling", float, "Draw from tokens at least this probable."),
    "eta_cutoff": Setting("Sampling", float, "The same, lower where the model is unsure."),
    "seed": Setting("Sampling", int, "The same seed gives the same text."),
    "num_return_sequences": Setting("Sampling", int, "How many answers to draw."),
    "num_beams": Setting("Beams", int, "How many continuations to keep in view."),
    "length_penalty": Setting("Beams", float, "Above 0 favours long answers, below 0 short ones."),
    "early_stopping": Setting("Beams", bool, "Stop once there are as many answers as beams."),
    "repetition_penalty": Setting("Scores", float, "Above 1: what was said already gets less likely."),
    "encoder_repetition_penalty": Setting("Scores", float, "Above 1: what the prompt says gets likelier."),
    "no_repeat_ngram_size": Setting("Scores", int, "Runs of this many tokens occur once only."),
    "encoder_no_repeat_ngram_size": Setting("Scores", int, "Runs of this many tokens of the prompt don't occur."),
    "guidance_scale": Setting("Scores", float, "Above 1: keep closer to the prompt, for two forwards a token."),
    "renormalize_logits": Setting("Scores", bool, "Normalise scores after they were changed."),
    "remove_invalid_values": Setting("Scores", bool, "Replace NaN and infinite scores."),
    "token_healing": Setting("Scores", bool, "Let the model finish the prompt's last word anew."),
    "use_cache": Setting("Cache", bool, "Keep keys and values of past tokens."),
    "cache_implementation": Setting("Cache", str, "dynamic, static, offloaded, quantized ..."),
    "prefill_chunk_size": Setting("Cache", int, "Read the prompt in chunks of this many tokens."),
}


def parsed(name: str, text: str) -> Any:
    """The value of a setting that was given as text.

    Raises:
        ArgumentError: There is no such setting, or it takes no such value.
    """
    if name not in SETTINGS:
        near = difflib.get_close_matches(name, SETTINGS, 1)
        raise ArgumentError(f"There is no setting {name!r}{f'; did you mean {near[0]!r}?' if near else '.'}")
    kind = SETTINGS[name].kind
    if kind == list[str]:
        return [text]
    if kind is bool:
        words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
        if text.lower() not in words:
            raise ArgumentError(f"{name} is on or off, and can't be {text!r}.")
        return words[text.lower()]
    try:
        return kind(text)
    except ValueError:
        number = "a whole number" if kind is int else "a number"
        raise ArgumentError(f"{name} is {number}, and can't be {text!r}.") from None


def without_effect(settings: dict[str, Any], model: PreTrainedModel) -> list[str]:
    """The settings among some that change nothing, since tokens are not drawn."""
    config = model.generation_config
    if settings.get("do_sample", config.do_sample if config else False):
        return []
    always = ("do_sample", "num_return_sequences")
    return [name for name in settings if SETTINGS[name].panel == "Sampling" and name not in always]
