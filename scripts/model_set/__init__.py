"""Models to compare backends on: small trained ones, well-known graphs, and files of packages."""
