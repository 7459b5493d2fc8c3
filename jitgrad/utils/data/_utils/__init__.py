"""The parts of a DataLoader: collation, fetching, and worker processes."""
