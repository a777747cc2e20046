"""How the published code of each model is loaded and asked."""
