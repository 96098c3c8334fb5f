"""What `python -m scripts.plan` is made of: one noun a file."""
