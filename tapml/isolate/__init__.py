"""The one pool of child processes: work that may crash, hang or need what the parent must not load.

:class:`tapml.isolate.pool.Pool` starts one server process, which imports slow modules once and
forks a child for every job. A child that dies takes nothing along and leaves a report.
"""
