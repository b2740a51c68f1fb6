"""The vocabulary every room shares: messages, errors, arguments, ports. Imports nothing of ours."""
