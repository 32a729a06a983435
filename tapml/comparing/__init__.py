"""One model on several backends: whether they agree, and at which layer they part.

After CRADLE (Pham et al., ICSE 2019). :func:`tapml.comparing.run.compare` is the way in.
"""
