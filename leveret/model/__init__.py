"""Types shared by every package: messages, errors, arguments, ports. Imports nothing of ours."""
