"""Loops of a kernel as tiles of the 910B's vector unit.

tables        what the unit can do: types, instructions
program       values, items of a tile: what is done, in order
instructions  one call each, written to the items of a tile
arithmetic    operations of the language as instructions
conversions   between dtypes, and between memory and lanes
axis          indices: what counts along the loop
lanes         a loop's statements, run symbolically -> a program
buffers       places of the unified buffer for a program
tiles         a program with its places -> text
scalar        the scalar unit: elements, atomics, functions
refusals      what no form can do
"""
