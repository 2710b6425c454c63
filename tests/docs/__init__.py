"""Pages: what they say of the code is true, and every block of code is at least well formed."""
