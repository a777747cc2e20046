"""Several frontend processes of one server (`--frontends`), and the process that starts them and keeps what they
share."""
