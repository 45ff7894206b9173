"""A static site of the repository: sample report, planner, experiments, docs; ``make site``."""
