"""What runs inside the vLLM under test: engine host, recorders, planted faults.

The folder above is put on the foreign interpreter's path. Nothing here imports anything of tprig:
only the standard library, what vLLM brings, and this package.
"""
