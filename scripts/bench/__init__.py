"""The parts of `python -m scripts.benchmark_attention`, one noun a file."""
