"""What the tests do inside the vLLM under test; the pytest process imports `client` alone of it."""
