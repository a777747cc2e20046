"""Fields that the APIs share, and the answers that routes wait for."""
