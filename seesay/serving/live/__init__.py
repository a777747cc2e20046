"""Live video over a WebSocket: frames in, questions in, streamed answers out."""
