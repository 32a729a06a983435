"""What every driver does, as cases that run on any device: ``tapml devices --test``.

They need the base install and the platform's ``conformance.py``, so that they run over platforms of
other distributions, and on a device that has no test suite.
"""
