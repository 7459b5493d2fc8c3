"""Runs compiled code: buffers, arena, threads, cache, loading."""
