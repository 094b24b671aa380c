"""Ways to show the figures of a bench. None of them measures or decides anything."""
