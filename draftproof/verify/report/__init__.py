"""Ways to show the outcome of a run. None of them decides anything."""
