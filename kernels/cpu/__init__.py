"""C++ for CPUs: AVX512-BF16, AVX2 and scalar, chosen at run time."""
