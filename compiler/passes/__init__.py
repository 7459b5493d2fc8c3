"""The passes that compiler/pipeline.py lists, one file each."""
