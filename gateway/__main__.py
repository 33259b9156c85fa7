"""`python -m gateway` is `esclusa`."""

from gateway.cli.main import main

main()
