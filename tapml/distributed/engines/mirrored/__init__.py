"""MirroredStrategy of TensorFlow."""
