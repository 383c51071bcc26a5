"""What this machine can run, what is missing and how to get it."""
