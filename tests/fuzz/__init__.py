"""Generated programs: eager, compiled and reference runs must agree.

program.py   a program as text, and how it is run
generate.py  draws programs; lines.py has the lines that it can draw
world.py     what programs find in their namespace
noise.py     how much a result depends on rounding
compare.py   what of two runs must agree
check.py     runs a program eager and compiled, and says what differs
minimise.py  makes a failing program small
"""
