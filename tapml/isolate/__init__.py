"""Child processes for work that may crash, hang, or import what the parent must not.

:class:`tapml.isolate.pool.Pool` runs jobs, one process each; workers, which keep state between
calls; and groups, which start and end together. A warm server forks the children. Each
:class:`tapml.isolate.environment.Environment` (interpreter, variables, preloaded modules) has its
own server. If a child dies, the pool reports why (:mod:`tapml.isolate.death`) and continues.
"""
