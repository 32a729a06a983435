"""A finished migration: its plan on the source, and as it was moved to the target."""

from tapml.backends.description import Description

DESCRIPTION = Description(
    title="a migrated plan",
    formats=("model/kept.json",),
    packages={"tvm": "apache-tvm==0.27.0.post1"},
    without=("tensorflow",),
    variants={
        "source": "the operators as the session recorded them, on this processor",
        "target": "the operators that the session moved, on its device",
    },
)
