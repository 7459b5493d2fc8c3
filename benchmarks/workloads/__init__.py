"""The workloads of the benchmark table: what is timed, and each rival's own program for it."""
