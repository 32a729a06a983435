"""The 12 causes that CRADLE found in Keras' backends of 2018, as patches of today's Keras."""
