"""The drivers of the Vulkan loader: which there are, and which are left out."""
