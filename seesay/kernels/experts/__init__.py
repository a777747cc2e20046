"""Mixtures of experts: routing, tilings and products."""
