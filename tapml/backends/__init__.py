"""Ways to run one model: one folder per backend, all with the same file names inside.

A folder ``tapml/backends/<name>/`` has ``__init__.py``, which describes the backend as
``DESCRIPTION`` (:class:`tapml.backends.description.Description`) and imports nothing else, and
``runner.py``, whose ``load(model, variant)`` returns a :class:`tapml.backends.runner.Runner`. The
runner is loaded in a child process alone. A package that another distribution lists under the entry
point group ``tapml.backends`` is a backend as well.
"""
