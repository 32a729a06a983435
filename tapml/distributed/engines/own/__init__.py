"""The wrapping of the job itself, its function `distribute`."""
