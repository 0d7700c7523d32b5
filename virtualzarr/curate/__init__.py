"""Decisions on what a survey of an archive tells, and the run that they drive."""
