"""Transforms: what a pipeline is made of, before it is planned; one file per family.

Each method of a stage (:mod:`jetlet.pipeline.stages`) adds one. It is plain data, and it knows the
facts about itself that the planner's passes ask for: they treat all transforms alike. A function in
:mod:`jetlet.planner.lowering`, whose files are named as they are here, turns it into vertices and
edges.
"""
