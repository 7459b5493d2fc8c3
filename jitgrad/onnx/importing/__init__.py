"""Reading ONNX models: files (reader.py), nodes (calls.py and a file for each kind of op), and the
Module that runs them (module.py)."""
