"""The composition root: the only room where services are built, opened in order and closed in reverse."""
