"""gpu_scheduler."""
