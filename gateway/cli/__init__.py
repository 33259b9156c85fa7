"""The `esclusa` command: parse, call a service, render. Imports heavy modules only inside commands."""
