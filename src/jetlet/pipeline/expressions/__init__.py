"""Expressions: functions of an item that the engine can see into.

``nodes`` is the tree, ``expression`` and ``builders`` what users write it with, ``operations`` the
one table of what can be done, ``data_types`` what a value can be and ``inference`` what an
expression gives. ``python_source`` turns a tree into Python, which is its meaning; compilers to
other languages give the same or leave it alone.
"""
