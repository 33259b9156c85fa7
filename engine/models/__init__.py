"""Model families, one per file: stateless layers over `kernels` ops."""
