"""The captured oracle: one production call of the rejection sampler, taken whole and run again."""
