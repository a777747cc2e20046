"""Routes of the operator: models, figures, commands."""
