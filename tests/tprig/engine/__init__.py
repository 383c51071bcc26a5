"""Tests with a real vLLM engine on the CPU."""
