"""StableLM: layer norms, partial rotary embedding; optionally normalised heads."""

from tapml.models.families.family import Family

FAMILY = Family(architectures=("StableLmForCausalLM",))
