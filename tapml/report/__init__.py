"""Pages for people, made of data: self-contained files, graph maps, and a server for them."""
