"""Mistakes that users make: each row is code, the error's type, and words that its text must have.

What the text must say: which op or layer, what was expected, what came (shapes, dtypes, values),
and where it helps, what to do. Nothing may be changed by a call that raises.
"""
