"""Makes the rig available to every test below; it starts nothing unless a suite is run."""

pytest_plugins = ["fixtures.plugin"]
