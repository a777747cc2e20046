"""Measures engines and servers: `seesay bench`, and what the scripts in `benchmarks/` share."""
