"""What benchmark_tpu is made of: one noun a file."""
