"""The functions of the public namespace, by kind."""
