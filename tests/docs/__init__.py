"""What holds the pages in `docs/` to what they tell of."""
