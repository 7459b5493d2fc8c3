"""GPUs: drivers, memory, streams and events. Owns no kernels: those come compiled."""
